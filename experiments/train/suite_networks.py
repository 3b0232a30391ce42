"""Train the benchmark suite's own networks, mnist-gelu and mnist-kwta, on the 60,000 training digits.

    PYTHONPATH=benchmarks python experiments/train/suite_networks.py mnist.npz [NAME ...]

Adam, one-cycle learning rate, fixed seed; about two minutes per network on one CPU core. The weights are rounded to
half precision, and the accuracy that is printed and stored in benchmarks/networks is that of the rounded network.
"""

import json
import sys
import time
from typing import Any

import torch
from common import read_mnist, train_with_adam
from networks import NETWORKS, WEIGHTS
from safetensors.torch import save_file

SETTINGS: dict[str, Any] = {"epochs": 4, "batch": 128, "peak_rate": 3e-3, "seed": 0}


def main(data: str, *names: str) -> None:
    """Train each network; write its weights and a record."""
    mnist = read_mnist(data)
    WEIGHTS.mkdir(exist_ok=True)
    for name in names or NETWORKS:
        began = time.time()
        weights, test = train_with_adam(NETWORKS[name], mnist, name=name, **SETTINGS)
        seconds = round(time.time() - began, 1)
        record = {"model": name, "test_accuracy": test, "seconds": seconds, **SETTINGS, "torch": str(torch.__version__)}
        print(record, flush=True)
        save_file(weights, WEIGHTS / f"{name}.safetensors")
        (WEIGHTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
