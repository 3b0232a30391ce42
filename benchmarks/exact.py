"""The default attack against exact ℓ∞ margins, of ReLU networks small enough for mixed-integer programming.

    PYTHONPATH=tests:benchmarks python benchmarks/exact.py

Twelve networks of two hidden layers, six downsampled digits each (tests/oracles.py).
"""

import numpy as np
import oracles
from record import write

import marginattack as ma

BUDGETS = (100, 400, 2000)
SHAPES = ((8, (12, 12)), (6, (16, 16)), (10, (20, 20)))  # side of the digits, hidden units


def main() -> None:
    """Compare at every budget."""
    excess: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    for seed in range(4):
        for side, hidden in SHAPES:
            oracle = oracles.relu_network(seed, side=side, hidden=hidden, n=6)
            found = {
                budget: ma.measure(oracle.model, oracle.images, oracle.labels, "linf", budget=budget).distance.numpy()
                for budget in BUDGETS
            }
            exact = oracles.milp_margins(oracle, np.min(list(found.values()), axis=0))
            for budget, distance in found.items():
                excess[budget] += (distance / exact - 1).tolist()
    numbers = {
        str(budget): {
            "n": len(each), "mean": float(np.mean(each)), "worst": max(each), "least": min(each),
            "exact": float(np.mean(np.array(each) <= 1e-3)),
        }
        for budget, each in excess.items()
    }  # fmt: skip
    print(numbers)
    write("exact", numbers)


if __name__ == "__main__":
    main()
