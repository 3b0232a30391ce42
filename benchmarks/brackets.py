"""How tight certified bounds are, and what they cost: lower / upper per sample, on one CPU thread.

    PYTHONPATH=benchmarks python benchmarks/brackets.py

A 784-20-10 network, trained here on bundled digits, with ``alpha`` and ``exact``; the bundled MNIST networks with
``crown`` and a limit of 20 s per digit. The upper side is Race with 400 passes.
"""

import statistics
import time
from typing import Any

import torch
from record import correct_samples, write
from torch import Tensor, nn

import marginattack as ma
from marginattack.reproduce.markdown import table
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

SEED, STEPS, LIMIT = 0, 400, 20.0


def small_network(images: Tensor, labels: Tensor) -> nn.Module:
    """784-20-10, trained with Adam on all digits."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


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


def main() -> None:
    """Run all cases and write the record."""
    torch.set_num_threads(1)
    small = small_network(*samples("mnist"))
    rows = [
        case("784-20-10", small, 16, "linf", "alpha"), case("784-20-10", small, 16, "l2", "alpha"),
        case("784-20-10", small, 16, "linf", "exact", 30.0),
        *(case(name, zoo(name), 2, "linf", "crown", LIMIT) for name in ("mnist-cnn", "mnist-cnn-adv")),
    ]  # fmt: skip
    write("brackets", rows)


if __name__ == "__main__":
    main()
