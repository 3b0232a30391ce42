"""The time of an attack in two checkouts, in alternation: whether a change made it slower.

    python benchmarks/regression.py OLD/src NEW/src [--rounds 7] [--cases mnist-cnn:128:race:l2 …] [--name NAME]

Each checkout runs in a process of its own, on the same inputs. In every round both measure once, one after the other;
the record holds the median of the ratios new / old and their range. As in speed.py, only the attack is timed, after
its graphs were captured. On a CPU: one thread and process time.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import IO, Any

CASES = {
    "cuda": (
        "mnist-cnn:128:race:l2", "mnist-cnn:128:race:linf", "mnist-cnn:128:marginattack:l2", "mnist-cnn:1024:race:l2",
        "cifar10-resnet32:128:race:l2", "cifar10-resnet32:128:race:linf", "cifar10-resnet32:128:marginattack:l2",
        "cifar10-resnet32:512:race:l2",
    ),
    "cpu": ("mnist-cnn:64:race:l2", "mnist-cnn:64:race:linf", "mnist-cnn:64:marginattack:l2"),
}  # fmt: skip
PASSES = 200


def serve(case: str) -> None:
    """Measure each time that a line comes in; print the seconds that it took."""
    import torch

    import marginattack as ma
    from marginattack.sources.data import samples
    from marginattack.sources.networks import zoo

    name, size, attack, norm = case.split(":")
    cuda = torch.cuda.is_available()
    if not cuda:
        torch.set_num_threads(1)
    images, labels = samples(name.split("-")[0])
    repeats = -(-int(size) // len(images))
    images, labels = (each.repeat(repeats, *[1] * (each.ndim - 1))[: int(size)] for each in (images, labels))
    clock = time.perf_counter if cuda else time.process_time
    with ExitStack() as stack:
        classifier: Any = ma.Classifier(zoo(name).to("cuda" if cuda else "cpu"))
        new_problem = prepare(stack, classifier, images, labels, norm)

        def once() -> float:
            began = clock()
            new_problem().solve(ma.ATTACKS[attack]())
            if cuda:
                torch.cuda.synchronize()
            return clock() - began

        for _ in range(2 if cuda else 1):
            once()
        print("ready", flush=True)
        for _ in sys.stdin:
            print(once(), flush=True)


def prepare(stack: ExitStack, classifier: Any, images: Any, labels: Any, norm: str) -> Callable[[], Any]:
    """A function that makes the problem of these samples anew, in this version of the package or before sessions."""
    from marginattack import L2, LINF, Problem

    chosen: Any = {"l2": L2, "linf": LINF}[norm]
    if hasattr(classifier, "held"):
        stack.enter_context(classifier.held())
        x, y, _ = classifier.accept(images, labels)
        classifier.meet(x, classifier.answers(x))
        old: Any = Problem
        return lambda: old(classifier, x, y, chosen, budget=PASSES)
    from marginattack.execution.session import open_session

    session = stack.enter_context(open_session(classifier))
    batch = session.validate(images, labels)
    evaluator = session.calibrate(batch.images)
    return lambda: session.problem(batch, chosen, budget=PASSES, evaluator=evaluator)


def ask(process: "subprocess.Popen[str]") -> float:
    """The seconds of one measurement in this process."""
    stdin, stdout = _pipes(process)
    stdin.write("go\n")
    stdin.flush()
    return float(stdout.readline())


def compare(case: str, sources: list[str], rounds: int) -> dict[str, Any]:
    """The median ratio of one case."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--serve", case], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        for source in sources
    ]  # fmt: skip
    for process in processes:
        if _pipes(process)[1].readline().strip() != "ready":
            raise RuntimeError(f"{case} failed: {process.args!r}")
    times = [[ask(process) for process in processes] for _ in range(rounds)]
    for process in processes:
        _pipes(process)[0].close()
        process.wait()
    ratios = [new / old for old, new in times]
    found = {
        "case": case, "rounds": rounds, "passes": PASSES, "old": median(t[0] for t in times),
        "new": median(t[1] for t in times), "ratio": median(ratios), "least": min(ratios), "most": max(ratios),
    }  # fmt: skip
    print(f"{case:40} {found['ratio']:.3f} ({found['least']:.3f} to {found['most']:.3f})", flush=True)
    return found


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    return process.stdin, process.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SRC", help="two folders that hold the package, old and new")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--name", help="of the record; regression-DEVICE unless stated")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    import torch
    from record import write

    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = options.cases or CASES[device]
    write(options.name or f"regression-{device}", [compare(case, options.sources, options.rounds) for case in cases])


if __name__ == "__main__":
    main()
