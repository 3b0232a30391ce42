"""How tight certified bounds are and what they cost: lower / upper per sample, on one CPU thread.

    PYTHONPATH=src:benchmarks python benchmarks/brackets.py [PART …]

Each part writes a record of its own; table is the default. The upper side is Race with 400 passes. Limits and seconds
are CPU time, since the machine may be shared; those of gpu are of the clock.

table      relaxations on small networks and on the bundled ones, with a limit of 15 s per digit
exact      50 digits of each network of small_networks.py, with a limit of 60 s per digit
adversarial  the same for 4 digits of those that were trained against PGD
single     10 digits one at a time, of the bundled network and of one with 53,090 parameters
memory     peak memory with 1,000 classes, for several sizes of a chunk
certified  certified and attacked accuracy of a network trained for interval bounds
gpu        64 digits of the bundled network at once, on a GPU
"""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from record import DEVICE, correct_samples, peak_memory, run_child, write
from small_networks import small_network
from torch import nn

import marginattack as ma
from marginattack.bounds import Relaxation
from marginattack.reproduce.markdown import table
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

LIMIT = 15.0  # seconds per digit
EXACT_LIMIT = 60.0  # seconds per digit
EPSILON = (0.02, 0.05, 0.1)
SINGLE_LIMIT = 15.0  # seconds per digit
CHUNKS = (2**18, 2**20, 2**22)
CLASSES = 1000
PLAIN = (
    ("784-20-10", "l1"), ("784-20-10", "l2"), ("784-20-10", "linf"), ("784-50-50-10", "linf"), ("two-conv", "linf"),
)  # fmt: skip


def case(name: str, model: nn.Module, n: int, norm: str, method: str, limit: float | None = None) -> dict[str, Any]:
    """Brackets of the first digits that the model classifies correctly."""
    images, labels = correct_samples(model, *samples("mnist"), n)
    margins = ma.measure(model, images, labels, norm, budget=400)
    began = time.process_time()
    brackets = ma.bound(model, images, labels, norm, upper=margins, method=method, time_limit=limit)
    seconds = (time.process_time() - began) / n
    shares = (brackets.lower / brackets.upper).tolist()
    row = {
        "model": name, "norm": norm, "method": method, "n": n, "time_limit": limit, "seconds_per_sample": seconds,
        "median": statistics.median(shares), "least": min(shares), "largest": max(shares),
        "closed": int(brackets.closed.sum()),
    }  # fmt: skip
    print(row, flush=True)
    return row


def page(rows: list[dict[str, Any]]) -> list[str]:
    """The table in docs/bounds.md."""
    header = ("model", "norm", "method", "n", "lower / upper: median", "least", "largest", "closed", "s per digit")
    cells = [
        (
            row["model"], row["norm"], row["method"], row["n"],
            *(f"{row[k]:.2f}" for k in ("median", "least", "largest")),
            row["closed"], f"{row['seconds_per_sample']:.2g}",
        )
        for row in rows
    ]  # fmt: skip
    return table(header, cells)


def gpu_page(rows: list[dict[str, Any]]) -> list[str]:
    """The table of GPU times in docs/bounds.md, without the first call, which loads kernels."""
    header = ("model", "norm", "method", "n", "chunk", "lower / upper: median", "least", "s per digit")
    return table(header, [
        (
            row["model"], row["norm"], row["method"], row["n"], f"2^{row['chunk'].bit_length() - 1}",
            f"{row['median']:.2f}", f"{row['least']:.2f}", f"{row['seconds_per_sample']:.2g}",
        )
        for row in rows[1:]
    ])  # fmt: skip


def relaxations() -> None:
    """The relaxations, on networks of several sizes."""
    names = ("784-20-10", "784-50-50-10", "two-conv", "interval")
    rows = [case(name, small_network(name), 16, norm, "alpha") for name in names for norm in ("linf", "l2")]
    rows += [case(name, zoo(name), 2, "linf", "crown", LIMIT) for name in ("mnist-cnn", "mnist-cnn-adv")]
    write("brackets", rows)


def certified_page(rows: list[dict[str, Any]]) -> list[str]:
    """The table of certified accuracies in docs/bounds.md."""
    header = ("model", "method", "ε", "n", "certified", "attacked")
    shares = ("certified", "attacked")
    cells = [(row["model"], row["method"], row["eps"], row["n"], *(f"{row[k]:.1%}" for k in shares)) for row in rows]
    return table(header, cells)


def adversarial(n: int = 4) -> None:
    """Exact margins of networks that were trained against PGD: they take longer."""
    exact(n, (("two-conv-adv", "linf"), ("784-50-50-10-adv", "linf")), "brackets-adversarial")


def exact(n: int = 50, cases: Sequence[tuple[str, str]] = PLAIN, record: str = "brackets-exact") -> None:
    """Exact margins, digit by digit."""
    rows = []
    for name, norm in cases:
        model = small_network(name)
        images, labels = correct_samples(model, *samples("mnist"), n)
        margins = ma.measure(model, images, labels, norm, budget=400)
        shares, seconds, closed, nearer = [], [], 0, 0
        for i in range(n):
            began = time.process_time()
            one = ma.bound(
                model, images[i, None], labels[i, None], norm, upper=margins.distance[i, None], method="exact",
                time_limit=EXACT_LIMIT,
            )  # fmt: skip
            seconds.append(time.process_time() - began)
            shares.append(float(one.lower / one.upper))
            closed += bool(one.closed)
            nearer += bool(one.upper < 0.99 * margins.distance[i])
            print(i, f"{shares[-1]:.3f}", f"{seconds[-1]:.2f} s", flush=True)
        row = {
            "model": name, "norm": norm, "method": "exact", "n": n, "time_limit": EXACT_LIMIT,
            "seconds_per_sample": statistics.mean(seconds), "median_seconds": statistics.median(seconds),
            "median": statistics.median(shares), "least": min(shares), "largest": max(shares), "closed": closed,
            "attack_1_percent_above": nearer,
        }  # fmt: skip
        print(row, flush=True)
        rows.append(row)
        write(record, rows)


def certified(n: int = 200) -> None:
    """Certified and attacked accuracy at several radii, of all digits, right or wrong."""
    model = small_network("interval")
    images, labels = (each[:n] for each in samples("mnist"))
    margins = ma.measure(model, images, labels, "linf", budget=400)
    rows = []
    for method in ("ibp", "crown"):
        began = time.process_time()
        brackets = ma.bound(model, images, labels, "linf", upper=margins, method=method)
        seconds = (time.process_time() - began) / n
        for eps, low, high in zip(
            EPSILON, brackets.certified_accuracy(EPSILON), margins.robust_accuracy(EPSILON), strict=True
        ):
            rows.append({
                "model": "interval", "norm": "linf", "eps": eps, "method": method, "n": n, "certified": low,
                "attacked": float(high), "seconds_per_sample": seconds,
            })  # fmt: skip
            print(rows[-1], flush=True)
    write("brackets-certified", rows)


def single(n: int = 10) -> None:
    """Digits one at a time: how long each takes, and what is certified of it."""
    rows = []
    cases = (
        ("mnist-cnn", zoo("mnist-cnn"), "crown", SINGLE_LIMIT),
        ("interval", small_network("interval"), "alpha", None),
    )
    for name, model, method, limit in cases:
        images, labels = correct_samples(model, *samples("mnist"), n)
        margins = ma.measure(model, images, labels, "linf", budget=400)
        shares, radii, seconds, by = [], [], [], []
        for i in range(n):
            began = time.process_time()
            one = ma.bound(
                model, images[i, None], labels[i, None], "linf", upper=margins.distance[i, None], method=method,
                time_limit=limit,
            )  # fmt: skip
            seconds.append(time.process_time() - began)
            radii.append(float(one.lower))
            shares.append(float(one.lower / one.upper))
            by.append(one.certified_by[0])
            print(i, f"{radii[-1]:.4f}", f"{shares[-1]:.3f}", f"{seconds[-1]:.2f} s", flush=True)
        rows.append({
            "model": name, "parameters": sum(each.numel() for each in model.parameters()), "norm": "linf",
            "method": method, "n": n, "time_limit": limit, "seconds_per_sample": statistics.mean(seconds),
            "largest_seconds": max(seconds), "least_radius": min(radii), "median_radius": statistics.median(radii),
            "median": statistics.median(shares), "least": min(shares), "largest": max(shares),
            "certified_by": sorted(set(by)),
        })  # fmt: skip
        write("brackets-single", rows)


def single_page(rows: list[dict[str, Any]]) -> list[str]:
    """The table of digits one at a time in docs/bounds.md."""
    header = ("model", "parameters", "method", "n", "certified radius: least", "median", "s per digit: mean", "largest")
    return table(header, [
        (
            row["model"], f"{row['parameters']:,}", row["method"], row["n"],
            *(f"{row[k]:.4f}" for k in ("least_radius", "median_radius")),
            *(f"{row[k]:.2g}" for k in ("seconds_per_sample", "largest_seconds")),
        )
        for row in rows
    ])  # fmt: skip


def memory() -> None:
    """Peak memory of one process per chunk size."""
    write("brackets-memory", [run_child(__file__, "memory", chunk) for chunk in CHUNKS])


def memory_of(chunk: int, n: int = 8) -> dict[str, Any]:
    """Memory that the bounds of a network with many classes add to that of the process, and what they certify."""
    torch.manual_seed(0)
    layers = (nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    model, images = nn.Sequential(*layers).requires_grad_(False), torch.rand(n, 1024)
    labels = model(images).argmax(1)
    ma.bound(model, images[:1], labels[:1], method="ibp")  # what torch itself needs
    few_steps = Relaxation(name="alpha", backward=True, steps=3)
    before, began = peak_memory(), time.process_time()
    brackets = ma.bound(model, images, labels, method=few_steps, chunk=chunk, tolerance=0.25)
    return {
        "chunk": chunk, "n": n, "classes": CLASSES, "mebibytes": peak_memory() - before,
        "seconds": time.process_time() - began, "median_lower": float(brackets.lower.median()),
    }  # fmt: skip


def memory_page(rows: list[dict[str, Any]]) -> list[str]:
    """The table of peak memory in docs/bounds.md."""
    header = ("chunk", "n", "classes", "MiB", "MiB per 2^20 numbers of a chunk", "s", "median radius")
    return table(header, [
        (
            f"2^{row['chunk'].bit_length() - 1}", row["n"], f"{row['classes']:,}", f"{row['mebibytes']:.0f}",
            f"{row['mebibytes'] / row['chunk'] * 2**20:.0f}", f"{row['seconds']:.1f}", f"{row['median_lower']:.4f}",
        )
        for row in rows
    ])  # fmt: skip


def soundness_page(numbers: dict[str, Any]) -> list[str]:
    """The table of faults in docs/bounds.md, from the record of soundness.py."""
    rows = [(name, each["bounds"], each["points"]) for name, each in numbers["faults"].items()]
    return table(("fault", "wrong bounds found", "misclassified points"), rows)


def gpu(n: int = 64) -> None:
    """Seconds per digit at one batch, after a first call that loads kernels; on a CPU where there is no GPU."""
    model = zoo("mnist-cnn").to(DEVICE)
    images, labels = correct_samples(model, *samples("mnist"), n)
    margins = ma.measure(model, images, labels, "linf", budget=200)
    rows = []
    for method, chunk, limit in (("crown", 2**26, 0.05), ("crown", 2**26, 0.1), ("crown", 2**28, 0.1)):
        began = time.perf_counter()
        brackets = ma.bound(
            model, images, labels, "linf", upper=margins, method=method, batch=n, chunk=chunk, time_limit=limit
        )
        seconds = (time.perf_counter() - began) / n
        shares = (brackets.lower / brackets.upper).tolist()
        rows.append({
            "model": "mnist-cnn", "norm": "linf", "method": method, "n": n, "chunk": chunk, "time_limit": limit,
            "seconds_per_sample": seconds, "median": statistics.median(shares), "least": min(shares),
            "certified_by": sorted(set(brackets.certified_by)), "device": DEVICE,
        })  # fmt: skip
        print(rows[-1], flush=True)
    write("brackets-gpu", rows)


PARTS = {
    "table": relaxations, "exact": exact, "adversarial": adversarial, "single": single, "memory": memory,
    "certified": certified, "gpu": gpu,
}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["memory"] and len(sys.argv) > 2:  # a process of its own
        print(json.dumps(memory_of(int(sys.argv[2]))))
        sys.exit()
    for part in sys.argv[1:] or ["table"]:
        if part != "gpu":
            time.monotonic = time.process_time  # the clock of ma.bound's time_limit
        PARTS[part]()
