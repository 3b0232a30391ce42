r"""Compare all attacks on models × norms × budgets, counted and verified alike.

    PYTHONPATH=src:benchmarks:PACKAGES python benchmarks/suite.py --data mnist=mnist.npz cifar10=cifar10_test.npz \
        [--models mnist-cnn …] [--norms l2 linf l1 l0] [--processes 12] [--minutes 9] [--long]
    python benchmarks/suite.py --merge FOLDER   # the results of another machine into benchmarks/records
    python benchmarks/suite.py --apart --work FOLDER   # cells that are compared with each other alone

Every result is a file below ``--work``, so an interrupted run resumes where it stopped; cells that benchmarks/records
holds, of the same weights and samples, are not run again unless ``--rerun WORD`` names their attack. What matters
most is run first, and the longest cells of a stage before the others, so a run that ``--minutes`` ends is worth as
much as it can be; cells that it interrupts are not kept. Distances of all samples go to suite.parquet and
suite-curves.parquet in ``--out`` ($OUT, or benchmarks/records with the records), every minute and at the end. The best
distances of a sample are over everything that was ever run on it. ``--model NAME=SOURCE`` adds a model that
``marginattack measure --model`` opens; the part of NAME before its first dash is its data set.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

import torch
from overall import OURS, is_baseline
from record import CUDA, DEVICE, RECORDS
from suite_cells import REFERENCE, Cell, Workload, folder, models, prepare, run_cell
from suite_results import (
    Results,
    make_record,
    merge,
    read_failures,
    read_parquet,
    read_work,
    write_apart,
    write_parquet,
    write_records,
)

from marginattack.analysis import benchmarking as bench
from marginattack.attacks.external import EXTERNAL_ATTACKS
from marginattack.attacks.presets import PRESETS
from marginattack.reproduce.markdown import table

MODELS = models()
DEFAULT = ("cifar10-resnet32-adv", "cifar10-resnet32", "mnist-cnn-adv", "mnist-kwta", "mnist-cnn", "mnist-gelu")
NORMS, BUDGETS = ("linf", "l2", "l1", "l0"), (100, 400, 2000)
LONG = 20_000  # passes of the runs that only feed the pool
FEWER_FROM = 1000  # passes from which on fewer samples are run
SEEDED = 400  # passes at which attacks that draw random numbers are run with further seeds
# Left out by default: Boundary runs one sample and one forward at a time, which takes hours for a budget of 2,000; JSMA
# and the one-pixel attack minimise the number of pixels, not a distance.
OPTIONAL = ("boundary", "jsma", "one-pixel")
# The peers that were best in some cell of earlier runs. They come first; all others follow.
STRONG = {
    "linf": ("advlib:apgd-t", "advlib:apgd", "advlib:fab-t", "advlib:fmn-0.5", "advlib:pdpgd"),
    "l2": ("advlib:ddn", "advlib:alma", "advlib:fab-t", "advlib:fmn", "advlib:apgd-t"),
    "l1": ("advlib:pdpgd", "advlib:alma", "advlib:apgd-t", "advlib:fab-t", "advlib:fmn"),
    "l0": ("advlib:sigma-zero", "advlib:fmn-l0", "advlib:pdpgd", "foolbox:brendel-bethge"),
}
RANDOM = ("race", "marginattack", "search", "advlib:apgd", "advlib:apgd-t", "advlib:fab", "advlib:fab-t")
MOST = {"cifar10": 200, "imagenet": 100}  # samples of the data sets whose networks are slow
RANKED = "best peer "  # stands for the peer of this rank, known once it is run


class Task(NamedTuple):
    """A cell of a (model, norm); stages are in the order of their importance."""

    stage: int
    model: str
    norm: str
    cell: Cell


def samples(model: str, options: argparse.Namespace) -> int:
    """How many samples of a model are run."""
    return int(min(options.samples, MOST.get(model.split("-")[0], options.samples)))


def workload_of(model: str, options: argparse.Namespace) -> Workload:
    """The model with its samples."""
    return prepare(model, tuple(options.model), tuple(options.data), samples(model, options))


@cache
def known_results() -> Results:
    """What benchmarks/records holds."""
    return read_parquet(RECORDS)


def attack_names(norm: str, data: str, *, optional: bool = False) -> list[str]:
    """Our attacks, the paper's settings for this data and norm, and the installed external ones for the norm."""
    own = [name for name in bench.minimum_norm_attacks(norm) if optional or name not in OPTIONAL]
    presets = [f"preset:{name}" for name in PRESETS if name == f"{data}-{norm}"]
    external = [
        name for name, attack in EXTERNAL_ATTACKS.items()
        if norm in attack.supported_norms and attack.eps is None and not attack.why_unavailable()
    ]  # fmt: skip
    return [*own, *presets, *external]


def stages(
    norm: str, names: list[str], budgets: list[int], *, seeds: list[int], long: bool
) -> Iterator[tuple[int, str, int, int]]:
    """Stage, attack, budget and seed of all cells of a (model, norm)."""
    strong = [name for name in ("marginattack", *STRONG[norm]) if name in names]
    rest = [name for name in names if name not in (OURS, *strong)]
    short, deep = ([b for b in budgets if (b < FEWER_FROM) == is_short] for is_short in (True, False))
    for stage, (group, each) in enumerate(
        (([OURS], short), ([OURS], deep), (strong, short), (strong, deep), ([], []), (rest, short), (rest, deep))
    ):
        yield from ((stage, name, budget, 0) for budget in each for name in group if name in names)
    if SEEDED in budgets:
        yield from ((4, name, SEEDED, seed) for name in names if name in RANDOM for seed in seeds)
    if long and OURS in names:
        yield from ((7, name, LONG, 0) for name in (OURS, *(f"{RANKED}{rank}" for rank in (1, 2))))


def plan(options: argparse.Namespace, known: Results | None = None) -> list[Task]:
    """All tasks, the most important first, then the longest, going by the seconds of known results."""
    rates = {key[:3]: each.trial.seconds / key[3] for key, each in (known or {}).items() if key[3]}
    tasks: list[Task] = []
    ranks: dict[Task, int] = {}
    for norm in options.norms:
        for model in options.models:
            names = attack_names(norm, model.split("-")[0], optional=options.all_attacks)
            names = [name for name in names if any(word in name for word in options.only)]
            most = samples(model, options)
            for rank, (stage, name, budget, seed) in enumerate(
                stages(norm, names, options.budgets, seeds=options.seeds, long=options.long)
            ):
                n = most if budget < FEWER_FROM else min(most, options.fewer)
                tasks.append(Task(stage, model, norm, Cell(name, budget, seed, n)))
                ranks[tasks[-1]] = rank
    place = {model: k for k, model in enumerate(options.models)}

    def order(task: Task) -> tuple[float, ...]:
        rate = rates.get((task.model, task.norm, task.cell.attack), 0.0)
        return task.stage, task.cell.budget, -rate, ranks[task], place[task.model]

    return sorted(tasks, key=order)


def missing(tasks: list[Task], known: Results, options: argparse.Namespace) -> list[Task]:
    """The tasks without a known result of the same weights and samples, and those of attacks to run again."""

    def is_known(task: Task) -> bool:
        model, norm, cell = task.model, task.norm, task.cell
        found = known.get((model, norm, cell.attack, cell.budget, cell.seed))
        if found is None or found.about["cut"] or any(word in cell.attack for word in options.rerun):
            return False
        workload = workload_of(model, options)
        return bool(found.about["digest"] == workload.digest and found.about["n"] >= min(cell.n, len(workload.images)))

    return [task for task in tasks if not is_known(task)]


def resolve(task: Task, work: Path) -> Cell | None:
    """The cell of a task; the attack of a rank is chosen by the mean excess at the largest budget so far."""
    if not task.cell.attack.startswith(RANKED):
        return task.cell
    results = merge(read_parquet(RECORDS), read_work(work))
    found = [each for each in results.values() if each.key[:2] == (task.model, task.norm)]
    rows = [row for row in make_record(found, {})["rows"] if is_baseline(row) and row["budget"] < LONG] if found else []
    deepest = max((row["budget"] for row in rows), default=0)
    rows = [row for row in rows if row["budget"] == deepest]
    best_library = {row["attack"].partition(":")[2]: row for row in reversed(rows)}  # of each attack
    rows = sorted(best_library.values(), key=lambda row: row["excess"])
    rank = int(task.cell.attack.removeprefix(RANKED))
    return task.cell._replace(attack=rows[rank - 1]["attack"]) if len(rows) >= rank else None


def run_task(task: Task, options: argparse.Namespace, deadline: float) -> str:
    """Run a task unless it is done; what happened, in a line."""
    workload = workload_of(task.model, options)
    cell = resolve(task, options.work)
    if cell is None:
        return ""
    path = folder(options.work, workload, task.norm) / cell.file
    if path.exists() or path.with_suffix(".failed").exists():
        return ""
    began = time.monotonic()
    limit = min(options.limit_seconds, deadline - began)
    name = f"{task.model} {task.norm} {cell.budget} {cell.attack} seed {cell.seed}"
    reference = known_results().get((task.model, task.norm, *REFERENCE, 0))
    margins = reference.trial.distance if reference and reference.about["digest"] == workload.digest else None
    try:
        trial = run_cell(options.work, workload, task.norm, cell, limit, margins)
    except Exception as error:  # an external attack may fail in any way; the reason is recorded, and the next one runs
        path.parent.mkdir(parents=True, exist_ok=True)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        path.with_suffix(".failed").write_text(reason)
        return f"{name}: failed: {reason}"
    if time.monotonic() >= deadline:  # interrupted, perhaps
        path.unlink()
        return f"{name}: not done within the time limit"
    return f"{name}: median {float(torch.tensor(trial.distance).median()):.4g}, {time.monotonic() - began:.1f} s"


def work_off(
    queue: Any, options: argparse.Namespace, deadline: float, run_task: Callable[[Any, argparse.Namespace, float], str]
) -> None:
    """Run tasks of the queue until it is empty or the time is over."""
    torch.set_num_threads(1)
    while time.monotonic() < deadline:
        try:
            task = queue.get(timeout=0.2)
        except Empty:
            return
        if line := run_task(task, options, deadline):
            print(line, flush=True)


def estimate(tasks: list[Task], options: argparse.Namespace) -> None:
    """Print the cost of a pass of each model, and of all tasks, run one after the other and side by side."""
    rows, total = [], 0.0
    for name in options.models:
        workload = workload_of(name, options)
        x = workload.images.to(DEVICE).requires_grad_()
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            for _ in range(5):  # of a forward and a backward
                torch.autograd.grad(workload.classifier.model(x).sum(), x)
            if CUDA:
                torch.cuda.synchronize()
            seconds = (time.perf_counter() - began) / 10
        mine = [task.cell for task in tasks if task.model == name]
        cost = sum(cell.budget * seconds * cell.n / samples(name, options) for cell in mine)
        rows.append((name, len(workload.images), f"{1e3 * seconds:.2f}", len(mine), f"{cost:.0f}"))
        total += cost
    print("\n".join(table(("model", "samples", "ms per pass", "cells", "seconds"), rows)))
    shared = f"{total / options.processes:.0f} s in {options.processes} processes"
    print(f"at least {total:.0f} s one after the other, {shared}; limit {60 * options.minutes:.0f} s", flush=True)


def run(options: argparse.Namespace) -> None:
    """Run all tasks within the time limit, and write the results every minute."""
    deadline, known = time.monotonic() + 60 * options.minutes, known_results()
    tasks = missing(plan(options, known), known, options)
    estimate(tasks, options)
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Manager().Queue() if options.processes > 1 else Queue()
    for task in tasks:
        queue.put(task)
    if options.processes == 1:
        work_off(queue, options, deadline, run_task)
        return
    workers = [
        context.Process(target=work_off, args=(queue, options, deadline, run_task)) for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline + 20:
        workers[0].join(60) if workers[0].is_alive() else time.sleep(1)
        if results := read_work(options.work):
            write_parquet(options.out, results)
    for worker in workers:
        worker.kill()


def finish(options: argparse.Namespace) -> None:
    """Write all results; in benchmarks/records also the records, with what is there already."""
    results, failed = read_work(options.work), read_failures(options.work)
    if options.apart:
        write_apart(results)
        return
    for source in options.merge:
        results = merge(results, read_parquet(source))
    if options.out == RECORDS:
        results = merge(read_parquet(RECORDS), results)
        for record in write_records(results, failed):
            print_table(record)
    else:
        write_parquet(options.out, results)


def print_table(numbers: dict[str, Any]) -> None:
    """Print the table of a (model, norm)."""
    runs = numbers["pool"]["runs"]
    print(f"\n{numbers['model']}, {numbers['norm']}, {numbers['n']} samples, best distances over {runs} runs")
    rows = [
        (
            row["budget"], row["attack"], row["n"], f"{row['excess']:.2%}", f"{row['excess_median']:.2%}",
            f"{row['excess_trimmed']:.2%}", f"{row['best']:.1%}", f"{row['optimality']:.4f}", f"{row['success']:.1%}",
            f"{row['forwards'] + row['backwards']:.0f}", f"{row['seconds']:.1f}",
        )
        for row in numbers["rows"]
    ]  # fmt: skip
    header = ("budget", "attack", "n", "excess", "median", "trimmed", "best", "optimality", "success", "passes", "s")
    print("\n".join(table(header, rows)))
    for row in numbers["rows"]:
        if d := row.get("difference"):
            print(f"{row['budget']} passes: race − {d['to']} {d['mean']:.2%} [{d['low']:.2%}, {d['high']:.2%}], "
                  f"won {d['won']:.0%}, lost {d['lost']:.0%}")  # fmt: skip
    for name, reason in numbers["failed"].items():
        print(f"failed: {name}: {reason}")


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--models", nargs="*", default=list(DEFAULT))
    parser.add_argument("--model", nargs="*", default=[], metavar="NAME=SOURCE")
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, type=int)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="attacks whose name contains a word")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--fewer", type=int, default=200, help=f"samples from {FEWER_FROM:,} passes on")
    parser.add_argument("--work", type=Path, default=Path("carry/suite"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", RECORDS)))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit-seconds", type=float, default=120, help="time limit per cell")
    parser.add_argument("--minutes", type=float, default=600, help="time limit of the run")
    parser.add_argument("--seeds", nargs="*", default=[1, 2], type=int, help=f"further seeds at {SEEDED} passes")
    parser.add_argument("--long", action="store_true", help=f"{LONG:,} passes of race and the two best peers, last")
    parser.add_argument("--all-attacks", action="store_true", help="include Boundary, JSMA and the one-pixel attack")
    parser.add_argument("--rerun", nargs="+", default=[], metavar="WORD", help="attacks to run again")
    parser.add_argument("--apart", action="store_true", help="run nothing; what is in --work alone, to apart.json")
    parser.add_argument("--merge", nargs="*", type=Path, default=[], metavar="FOLDER", help="run nothing")
    options = parser.parse_args()
    options.models += [entry.partition("=")[0] for entry in options.model]
    return options


def main() -> None:
    """Run, or merge, and write the results."""
    options = parse()
    torch.set_num_threads(1)
    if not options.merge and not options.apart:
        run(options)
    finish(options)


if __name__ == "__main__":
    main()
