"""How tight certified bounds are, what they cost, and that none is wrong: lower / upper per sample, on one CPU thread.

    PYTHONPATH=benchmarks:tests/bounds python benchmarks/brackets.py [PART …]

Each part writes a record of its own; table is the default. The upper side is Race with 400 passes. Limits and seconds
are CPU time, since the machine may be shared; those of gpu are of the clock.

table      relaxations on small networks and on the bundled ones, with a limit of 15 s per digit
exact      50 digits of each network of small_networks.py, with a limit of 60 s per digit
adversarial  the same for 4 digits of those that were trained against PGD
soundness  lower ≤ exact ≤ upper on random networks, and random points inside certified balls
certified  certified and attacked accuracy of a network trained for interval bounds
gpu        64 digits of the bundled network at once, on a GPU
"""

import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from record import DEVICE, correct_samples, write
from small_networks import small_network
from torch import Tensor, nn

import marginattack as ma
from marginattack.bounds import METHODS
from marginattack.reproduce.markdown import table
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

LIMIT = 15.0  # seconds per digit
EXACT_LIMIT = 60.0  # seconds per digit
EPSILON = (0.02, 0.05, 0.1)
PLAIN = (("784-20-10", "l2"), ("784-20-10", "linf"), ("784-50-50-10", "linf"), ("two-conv", "linf"))


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
        "closed": int(brackets.closed.sum()), "lower_above_attack": int((brackets.lower > margins.distance).sum()),
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
            assert float(one.lower) <= float(margins.distance[i])
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


def random_network(seed: int, sizes: tuple[int, ...]) -> nn.Sequential:
    """A ReLU network with normal weights whose boundaries cross the unit cube."""
    generator = torch.Generator().manual_seed(seed)
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layer = nn.Linear(a, b)
        layer.weight.data = torch.randn(b, a, generator=generator)
        layer.bias.data = torch.randn(b, generator=generator) / 2 - layer.weight.data.sum(1) / 2
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1]).requires_grad_(False)


def points_in(x: Tensor, radius: Tensor, norm: str, count: int, seed: int) -> Tensor:
    """Random points of each ball and the box, half of them at the border: (n, count, d)."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(x), count, x.shape[1], generator=generator, dtype=torch.float64)
    noise[:, ::2] = noise[:, ::2].sign() if norm == "linf" else noise[:, ::2]
    size = ma.core.norms.NORMS[norm].size(noise.flatten(0, 1)).view(len(x), count, 1)
    length = torch.rand(len(x), count, 1, generator=generator, dtype=torch.float64)
    length[:, ::2] = 1 - 1e-6
    return (x.double()[:, None] + length * radius.clamp(max=9.0)[:, None, None] * noise / size).clamp(0, 1).to(x.dtype)


def soundness(networks: int = 24, n: int = 30, exact_n: int = 4, count: int = 60) -> None:
    """Every method against exact answers, an attack, and random points."""
    from references import exact_margin

    triples = exact_triples = violations = points = wrong = 0
    for seed in range(networks):
        small = seed % 2 == 0
        model = random_network(seed, (3, 3, 2, 3) if small else (8, 24, 16, 5))
        x = torch.rand(n, 3 if small else 8, generator=torch.Generator().manual_seed(seed))
        y = model(x).argmax(1)
        for norm in ("l1", "l2", "linf"):
            upper = ma.measure(model, x, y, norm, budget=100)
            found = [ma.bound(model, x, y, norm, upper=upper, method=m) for m in ("ibp", "crown", "alpha")]
            few = upper.distance[:exact_n]
            closed = ma.bound(model, x[:exact_n], y[:exact_n], norm, upper=few, method="exact", time_limit=5.0)
            triples += n
            violations += int((closed.lower > few * (1 + 1e-9)).sum())
            violations += sum(int((b.lower > torch.minimum(b.upper, upper.distance) * (1 + 1e-9)).sum()) for b in found)
            for i in range(exact_n if small else 0):
                truth = exact_margin(model, x[i], int(y[i]), norm)
                exact_triples += 1
                violations += sum(float(b.lower[i]) > truth * (1 + 1e-7) + 1e-9 for b in (*found, closed))
                violations += float(closed.upper[i]) < truth * (1 - 1e-5) - 1e-6
            radius = torch.stack([b.lower for b in found]).amax(0)
            radius[:exact_n] = torch.maximum(radius[:exact_n], closed.lower)
            inside = points_in(x, radius, norm, count, seed)
            points += inside[..., 0].numel()
            wrong += int((model(inside.flatten(0, 1)).argmax(1).view(n, count) != y[:, None]).sum())
        print(seed, triples, exact_triples, violations, points, wrong, flush=True)
    write("brackets-soundness", {
        "triples": triples, "with_exact_answer": exact_triples, "methods": list(METHODS), "violations": violations,
        "points_in_certified_balls": points, "misclassified": wrong,
    })  # fmt: skip


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
    "table": relaxations, "exact": exact, "adversarial": adversarial, "soundness": soundness, "certified": certified,
    "gpu": gpu,
}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    for part in sys.argv[1:] or ["table"]:
        if part != "gpu":
            time.monotonic = time.process_time  # the clock of ma.bound's time_limit
        PARTS[part]()
