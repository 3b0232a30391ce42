r"""Robust accuracy by the default attack and by AutoAttack (standard), at radii near the quartiles of the margins.

    PYTHONPATH=src:benchmarks:PACKAGES python benchmarks/autoattack.py --data mnist=mnist.npz cifar10=cifar10_test.npz \
        [--by autoattack race] [--models …] [--norms linf l2 l1] [--samples 300] [--processes 14] [--minutes 9]
    python benchmarks/autoattack.py --merge FOLDER …   # work folders of other machines into the record

A verdict is one attack on one network at one radius: who is robust, and passes per sample, forwards plus backwards.
Those of AutoAttack are counted by hooks on the model, those of the default attack, which has 2,000 passes and stops a
sample at its first point within the radius, by its budget. Each verdict is a file below ``--work``, so an interrupted
run resumes; the longest are run first. The record, autoattack.json, keeps all verdicts: after a change of the default
attack ``--by race`` suffices.
"""

import argparse
import json
import multiprocessing
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from record import DEVICE, RECORDS, CountingModel, conditions, read, write
from suite import DEFAULT, work_off
from suite_cells import Workload, prepare, time_limit
from torch import Tensor

import marginattack as ma
from marginattack.core.budget import BudgetExhausted
from marginattack.core.norms import as_norm
from marginattack.reproduce.markdown import table

# Near the quartiles of the least margins in suite.parquet, in ℓ1 near their median; on ImageNet around the median.
RADII = {
    "mnist-cnn": {"linf": (0.0754, 0.0938, 0.111), "l2": (0.986, 1.22, 1.45), "l1": (4.92,)},
    "mnist-cnn-adv": {"linf": (0.32, 0.334, 0.343), "l2": (0.981, 1.14, 1.36), "l1": (2.54,)},
    "mnist-gelu": {"linf": (0.0508, 0.069, 0.0916), "l2": (0.759, 1.02, 1.38), "l1": (5.97,)},
    "mnist-kwta": {"linf": (0.0835, 0.113, 0.149), "l2": (1.01, 1.38, 1.83), "l1": (6.42,)},
    "cifar10-resnet32": {"linf": (0.00142, 0.00218, 0.00336), "l2": (0.0489, 0.0761, 0.114), "l1": (0.74,)},
    "cifar10-resnet32-adv": {"linf": (0.0159, 0.0316, 0.0498), "l2": (0.376, 0.729, 1.03), "l1": (4.36,)},
    "imagenet-efficientnet-lite0": {"linf": (0.00025, 0.0004, 0.0006), "l2": (0.05, 0.081, 0.12), "l1": (3.45,)},
}
THEIRS = {"l1": "L1", "l2": "L2", "linf": "Linf"}  # in the order of the time that AutoAttack takes, longest first
BUDGET = 2000
SLACK = 1e-5, 1e-7  # relative and absolute: distances up to so much more than the radius count as within it, for both


class Task(NamedTuple):
    """An attack, "autoattack" or "race", on a network at a radius."""

    by: str
    model: str
    norm: str
    eps: float


def plan(options: argparse.Namespace) -> list[Task]:
    """All tasks, the longest first: ℓ1, large networks, small radii, at which most samples are robust."""
    names = sorted(options.models, key=lambda name: (name.startswith("mnist"), name))
    return [
        Task(by, name, norm, eps)
        for by in options.by for norm in THEIRS if norm in options.norms
        for name in names for eps in RADII[name][norm]
    ]  # fmt: skip


def run_autoattack(workload: Workload, norm: str, eps: float) -> tuple[Tensor, float]:
    """AutoAttack on the plain model: who is robust, and passes per sample."""
    from pyautoattack import AutoAttack

    model = CountingModel(workload.classifier.model).eval()
    x, y = workload.images.to(DEVICE).contiguous(), workload.labels.to(DEVICE)  # it takes views of what is shaped as x
    attack = AutoAttack(model, norm=THEIRS[norm], eps=eps, seed=0, device=DEVICE)
    points, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    passes = (model.forwards + model.backwards) / len(x)
    with torch.no_grad():
        fooled = workload.classifier.model(points).argmax(1) != y
    size = as_norm(norm).size((points.double() - x.double()).flatten(1))[:, 0]
    return ~(fooled & is_within(size, eps)).cpu(), passes


def is_within(distance: Tensor, eps: float) -> Tensor:
    """Whether a distance is the radius or less, up to rounding of the pixels in float32."""
    relative, absolute = SLACK
    return distance <= eps * (1 + relative) + absolute


def run_race(workload: Workload, norm: str, eps: float) -> tuple[Tensor, float]:
    """The default attack, which ends a sample within the radius: who is robust, and passes per sample."""
    found = ma.measure(
        workload.classifier, workload.images, workload.labels, norm, budget=BUDGET, enough=eps,
        batch=len(workload.images), diagnose=False,
    )  # fmt: skip
    return ~is_within(found.distance, eps), float((found.forwards + found.backwards).double().mean())


def run_task(task: Task, options: argparse.Namespace, deadline: float) -> str:
    """Run a task unless it is done; what happened, in a line."""
    workload = prepare(task.model, (), tuple(options.data), options.samples)
    path = options.work / f"{'-'.join(map(str, task))}-{workload.digest}.json"
    if path.exists():
        return ""
    run = run_autoattack if task.by == "autoattack" else run_race
    began, found = time.monotonic(), None
    with suppress(BudgetExhausted), time_limit(deadline - began):
        found = run(workload, task.norm, task.eps)
    seconds = time.monotonic() - began
    if found is None or time.monotonic() >= deadline:  # the default attack ends with what it has
        return f"{' '.join(map(str, task))}: not done within the time limit"
    robust, passes = found
    verdict = {
        **task._asdict(), "digest": workload.digest, "robust": "".join(str(int(each)) for each in robust),
        "passes": passes, "seconds": round(seconds, 1), "on": conditions(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(verdict))
    return f"{' '.join(map(str, task))}: {robust.double().mean():.1%} robust, {passes:.0f} passes, {seconds:.0f} s"


def compare(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per network and radius at which both attacks ran on the same samples."""
    sides: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for each in verdicts:
        sides.setdefault(tuple(each[key] for key in ("model", "norm", "eps", "digest")), {})[each["by"]] = each
    rows = []
    for (model, norm, eps, _), both in sorted(sides.items()):
        if len(both) == 2:
            ours, theirs = (np.array(list(both[by]["robust"])) == "1" for by in ("race", "autoattack"))
            rows.append({
                "model": model, "norm": norm, "eps": eps, "n": len(ours), "race": float(ours.mean()),
                "autoattack": float(theirs.mean()), "race_passes": both["race"]["passes"],
                "autoattack_passes": both["autoattack"]["passes"], "only_race": int((~ours & theirs).sum()),
                "only_autoattack": int((ours & ~theirs).sum()),
            })  # fmt: skip
    return rows


def summarise(rows: list[dict[str, Any]]) -> str:
    """In how many rows the default attack's verdict is at or below AutoAttack's, and its share of the passes."""
    first = sum(row["race"] <= row["autoattack"] for row in rows)
    shares = [row["race_passes"] / row["autoattack_passes"] for row in rows]
    return (
        f"Robust accuracy by `race` is at or below AutoAttack's at {first} of {len(rows)} radii, with "
        f"{min(shares):.0%} to {max(shares):.0%} of its passes."
    )


def format_table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    header = ("network", "norm", "ε", "n", "robust: `race`", "AutoAttack", "passes: `race`", "AutoAttack",
              "only `race` fools", "only AutoAttack")  # fmt: skip
    return table(header, [
        (r["model"], r["norm"], f"{r['eps']:g}", r["n"], f"{r['race']:.1%}", f"{r['autoattack']:.1%}",
         f"{r['race_passes']:,.0f}", f"{r['autoattack_passes']:,.0f}", r["only_race"], r["only_autoattack"])
        for r in rows
    ])  # fmt: skip


def finish(folders: list[Path]) -> None:
    """Write the record of the verdicts below these folders and of those that it holds already, and print it."""
    record = RECORDS / "autoattack.json"
    known = read(record)[1]["verdicts"] if record.exists() else []
    new = [json.loads(path.read_text()) for folder in folders for path in sorted(folder.glob("*.json"))]
    latest = {tuple(each[key] for key in (*Task._fields, "digest")): each for each in (*known, *new)}
    verdicts = [latest[key] for key in sorted(latest)]
    rows = compare(verdicts)
    write("autoattack", {"rows": rows, "verdicts": verdicts})
    print("\n".join(format_table(rows)), flush=True)
    if rows:
        print(summarise(rows), flush=True)


def main() -> None:
    """Run all tasks, or merge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--by", nargs="+", default=["autoattack", "race"], choices=("autoattack", "race"))
    parser.add_argument("--models", nargs="+", default=list(DEFAULT), choices=list(RADII))
    parser.add_argument("--norms", nargs="+", default=list(THEIRS), choices=list(THEIRS))
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--work", type=Path, default=Path("carry/autoattack"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="time limit of the run")
    parser.add_argument("--merge", nargs="*", type=Path, default=[], metavar="FOLDER", help="run nothing")
    options = parser.parse_args()
    if not options.merge:
        deadline, tasks = time.monotonic() + 60 * options.minutes, plan(options)
        run_all(tasks, options, deadline)
    finish(options.merge or [options.work])


def run_all(tasks: list[Task], options: argparse.Namespace, deadline: float) -> None:
    """Run tasks in several processes until the deadline."""
    context = multiprocessing.get_context("spawn")
    queue = context.Manager().Queue()
    for task in tasks:
        queue.put(task)
    workers = [
        context.Process(target=work_off, args=(queue, options, deadline, run_task)) for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline + 20:
        time.sleep(1)
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    main()
