"""Train the benchmarks' own networks (benchmarks/networks.py) on the 60,000 training digits.

    PYTHONPATH=benchmarks python experiments/train/suite_networks.py mnist.npz [NAME ...]

Adam, one-cycle learning rate, fixed seed; at most two minutes per network on one CPU core. Names that end in ``-adv``
are trained against PGD in ℓ∞ at ε = 0.1. The weights are rounded to
half precision, and the accuracy that is printed and stored in benchmarks/networks is that of the rounded network.
"""

import json
import sys
import time
from typing import Any

import torch
from common import read_mnist, train_with_adam
from networks import NETWORKS, SMALL, WEIGHTS
from safetensors.torch import save_file

SETTINGS: dict[str, Any] = {"epochs": 4, "batch": 128, "peak_rate": 3e-3, "seed": 0}
AGAINST = {"conv-adv": {"epsilon": 0.1, "growth": 0.7}}  # from the full radius on it learns nothing


def main(data: str, *names: str) -> None:
    """Train each network; write its weights and a record."""
    mnist = read_mnist(data)
    WEIGHTS.mkdir(exist_ok=True)
    for name in names or NETWORKS | SMALL:
        began, settings = time.time(), SETTINGS | (AGAINST.get(name, {"epsilon": 0.1}) if name.endswith("-adv") else {})
        weights, test = train_with_adam((NETWORKS | SMALL)[name], mnist, name=name, **settings)
        seconds = round(time.time() - began, 1)
        record = {"model": name, "test_accuracy": test, "seconds": seconds, **settings, "torch": str(torch.__version__)}
        print(record, flush=True)
        save_file(weights, WEIGHTS / f"{name}.safetensors")
        (WEIGHTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
