r"""The time of a measurement on a CPU with one and with two threads, on the same inputs in one run.

    PYTHONPATH=src:benchmarks:PACKAGES python benchmarks/threads.py [--cases mnist-cnn:64:100 …] [--threads 2] \
        [--rounds 5] [--torch] [--any-size] [--data imagenet=FILE.npz] [--record threads-cpu]

A case is a network, a number of inputs (repeated where fewer are bundled) and a budget. Each round measures with one
thread, with several and, with ``--torch``, with as many of torch's own threads instead of parts of the batch; with
``--any-size`` also with passes of the whole batch, whatever the size of their tensors, in one thread. Times are by the
clock on the wall, with ``--threads 1`` of the process; the record holds the ratios within each round and their medians.
Run it on an idle machine: "load" is the average number of busy processes in the last minute.
"""

import argparse
import os
import sys
import time
from statistics import median
from typing import Any

import torch
from record import write
from suite_cells import models
from torch import Tensor

import marginattack as ma
from marginattack.execution import probe
from marginattack.execution import threads as parallel
from marginattack.execution.probe import LARGEST_BLOCK
from marginattack.execution.threads import MOST_PARTS

CASES = (
    "mnist-cnn:8:100", "mnist-cnn:64:60", "mnist-cnn:64:100", "mnist-cnn-adv:64:100", "cifar10-resnet32:8:100",
    "cifar10-resnet32:64:60", "cifar10-resnet32:64:100",
)  # fmt: skip


def measure_case(name: str, n: int, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one case with one thread and with several, in turn."""
    suite_model = models()[name]
    model, files = suite_model.open(), dict(entry.split("=") for entry in options.data)
    images, labels = (_repeat(part, n) for part in suite_model.read({key: [path] for key, path in files.items()}))
    ma.measure(model, images[:2], labels[:2], budget=10, diagnose=False)  # loads what is needed at first use
    several = options.threads
    ways = {"one": (1, MOST_PARTS, LARGEST_BLOCK)}
    if several > 1:
        ways["parts"] = several, MOST_PARTS, LARGEST_BLOCK
    if options.torch:
        ways["torch"] = several, 1, LARGEST_BLOCK
    if options.any_size:
        ways["one, any size"] = 1, MOST_PARTS, sys.maxsize
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    means: dict[str, float] = {}
    load = os.getloadavg()[0]
    clock = time.perf_counter if several > 1 else time.process_time
    for _ in range(options.rounds):
        for way, times in seconds.items():
            number, parallel.MOST_PARTS, probe.LARGEST_BLOCK = ways[way]
            torch.set_num_threads(number)
            began = clock()
            margins = ma.measure(model, images, labels, budget=budget, diagnose=False)
            times.append(clock() - began)
            means[way] = float(margins.distance.mean())
    parallel.MOST_PARTS, probe.LARGEST_BLOCK = MOST_PARTS, LARGEST_BLOCK
    ratios = {way: [a / b for a, b in zip(seconds["one"], times, strict=True)] for way, times in seconds.items()}
    return {
        "model": name, "n": n, "budget": budget, "threads": options.threads,
        "times as fast": {way: median(values) for way, values in ratios.items()}, "rounds": ratios, "seconds": seconds,
        "ratio of means": {way: mean / means["one"] for way, mean in means.items()}, "load": load,
    }  # fmt: skip


def _repeat(rows: Tensor, n: int) -> Tensor:
    """The first n rows; small sets are repeated."""
    return rows.repeat(-(-n // len(rows)), *[1] * (rows.ndim - 1))[:n]


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="MODEL:INPUTS:BUDGET")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--any-size", action="store_true")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--record", default="threads-cpu")
    options = parser.parse_args()
    results = []
    for case in options.cases:
        name, n, budget = case.split(":")
        results.append(measure_case(name, int(n), int(budget), options))
        print(results[-1], flush=True)
        write(options.record, results)


if __name__ == "__main__":
    main()
