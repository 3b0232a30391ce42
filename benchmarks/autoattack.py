r"""Robust accuracy by the default attack and by AutoAttack (standard), at radii near the quartiles of the margins.

    PYTHONPATH=src:benchmarks:PACKAGES python benchmarks/autoattack.py --data mnist=mnist.npz cifar10=cifar10_test.npz \
        [--models …] [--norms linf l2 l1] [--samples 300] [--processes 12] [--minutes 9]

For each network the default attack measures the samples once, with 2,000 passes; AutoAttack attacks them at three radii
in ℓ∞ and ℓ2 and one in ℓ1. Passes are forwards plus backwards of single samples, means over all samples: those of the
default attack as its budget counts them, also when each sample ends at its first point within the radius ("to decide");
those of AutoAttack by hooks on the model. Results below ``--work`` are not run again; the record is autoattack.json.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from record import DEVICE, CountingModel, write
from suite import DEFAULT, work_off
from suite_cells import Cell, Workload, folder, load, prepare, run_cell, time_limit

from marginattack.analysis.benchmarking import Trial, grid
from marginattack.core.budget import BudgetExhausted
from marginattack.core.norms import as_norm
from marginattack.reproduce.markdown import table

QUANTILES = {"linf": (0.5, 0.25, 0.75), "l2": (0.5, 0.25, 0.75), "l1": (0.5,)}
THEIRS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
BUDGET = 2000
ROUNDING = 1 + 1e-5  # distances up to this times the radius count as within it, for both


class Task(NamedTuple):
    """A network, a norm, and which quantile of the margins is the radius; None: measure the margins."""

    model: str
    norm: str
    quantile: float | None


def margins(task: Task, workload: Workload, options: argparse.Namespace) -> Trial:
    """The margins by the default attack, run once."""
    cell = Cell("race", BUDGET, 0, len(workload.images))
    path = folder(options.work, workload, task.norm) / cell.file
    return load(path)[1] if path.exists() else run_cell(options.work, workload, task.norm, cell, options.limit_seconds)


def run_autoattack(workload: Workload, norm: str, eps: float, limit: float) -> dict[str, Any]:
    """AutoAttack on the plain model: who is robust, passes per sample, seconds."""
    from pyautoattack import AutoAttack

    model = CountingModel(workload.classifier.model).eval()
    x, y = workload.images.to(DEVICE), workload.labels.to(DEVICE)
    began = time.perf_counter()
    with time_limit(limit):
        attack = AutoAttack(model, norm=THEIRS[norm], eps=eps, seed=0, device=DEVICE)
        points, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    seconds, passes = time.perf_counter() - began, (model.forwards + model.backwards) / len(x)
    with torch.no_grad():
        fooled = workload.classifier.model(points).argmax(1) != y
    size = as_norm(norm).size((points.double() - x.double()).flatten(1))[:, 0]
    robust = ~(fooled & (size <= eps * ROUNDING)).cpu()
    return {"robust": robust.tolist(), "passes": passes, "seconds": seconds}


def passes_to_decide(trial: Trial, eps: float) -> float:
    """The mean over samples of the passes until the first point within the radius, or of all if there is none."""
    spent = (trial.forwards + trial.backwards).astype(float)
    within = trial.curve <= eps * ROUNDING
    first = np.append(grid(trial.budget), trial.budget)[np.where(within.any(1), within.argmax(1), -1)]
    return float(np.where(trial.distance <= eps * ROUNDING, np.minimum(first, spent), spent).mean())


def run_task(task: Task, options: argparse.Namespace, deadline: float) -> str:
    """Run a task unless it is done; what happened, in a line."""
    workload = prepare(task.model, (), tuple(options.data), options.samples)
    path = options.work / f"{task.model}_{task.norm}_{workload.digest}" / f"autoattack-{task.quantile}.json"
    if path.exists():
        return ""
    trial = margins(task, workload, options)
    if task.quantile is None:
        return f"{task.model} {task.norm}: median margin {np.median(trial.distance):.4g}, {trial.seconds:.1f} s"
    eps = float(f"{np.quantile(trial.distance, task.quantile):.3g}")
    try:
        theirs = run_autoattack(workload, task.norm, eps, min(options.limit_seconds, deadline - time.monotonic()))
    except BudgetExhausted:
        return f"{task.model} {task.norm} {eps}: AutoAttack is not done within the time limit"
    ours, robust = trial.distance > eps * ROUNDING, np.array(theirs["robust"])
    missed = trial.distance[ours & ~robust] / eps - 1
    row = {
        "model": task.model, "norm": task.norm, "eps": eps, "n": len(ours), "race": float(ours.mean()),
        "race_passes": float((trial.forwards + trial.backwards).mean()), "race_seconds": trial.seconds,
        "race_passes_to_decide": passes_to_decide(trial, eps), "autoattack": float(robust.mean()),
        "autoattack_passes": theirs["passes"], "autoattack_seconds": theirs["seconds"],
        "only_race": int((~ours & robust).sum()), "only_autoattack": int((ours & ~robust).sum()),
        "missed_by": [round(float(each), 5) for each in missed],
    }  # fmt: skip
    path.write_text(json.dumps(row))
    return f"{task.model} {task.norm} {eps}: race {row['race']:.1%}, AutoAttack {row['autoattack']:.1%}"


def finish(options: argparse.Namespace) -> None:
    """Write the record of everything below the work folder, and print it."""
    rows = [json.loads(path.read_text()) for path in sorted(options.work.glob("*/autoattack-*.json"))]
    rows.sort(key=lambda row: (row["model"], row["norm"], row["eps"]))
    write("autoattack", rows)
    header = ("network", "norm", "ε", "n", "robust: race", "AutoAttack", "passes: race", "to decide", "AutoAttack",
              "only race fools", "only AutoAttack")  # fmt: skip
    cells = [
        (r["model"], r["norm"], f"{r['eps']:g}", r["n"], f"{r['race']:.1%}", f"{r['autoattack']:.1%}",
         f"{r['race_passes']:.0f}", f"{r['race_passes_to_decide']:.0f}", f"{r['autoattack_passes']:.0f}",
         r["only_race"], r["only_autoattack"])
        for r in rows
    ]  # fmt: skip
    print("\n".join(table(header, cells)), flush=True)


def main() -> None:
    """Run all tasks, the margins first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--models", nargs="+", default=list(DEFAULT))
    parser.add_argument("--norms", nargs="+", default=list(QUANTILES), choices=list(QUANTILES))
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--work", type=Path, default=Path("carry/autoattack"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=240, help="time limit per radius")
    parser.add_argument("--minutes", type=float, default=600, help="time limit of the run")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    context = multiprocessing.get_context("spawn")
    queue = context.Manager().Queue()
    pairs = [(model, norm) for norm in options.norms for model in options.models]
    for model, norm in pairs:
        queue.put(Task(model, norm, None))
    for rank in range(3):
        for model, norm in pairs:
            for quantile in QUANTILES[norm][rank : rank + 1]:
                queue.put(Task(model, norm, quantile))
    workers = [
        context.Process(target=work_off, args=(queue, options, deadline, run_task)) for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline + 20:
        time.sleep(1)
    for worker in workers:
        worker.kill()
    finish(options)


if __name__ == "__main__":
    main()
