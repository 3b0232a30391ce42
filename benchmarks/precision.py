"""What a search in bf16 costs: margins with it over margins without, on networks of the suite.

    PYTHONPATH=src:benchmarks python benchmarks/precision.py [DIGITS]

Race with 400 passes, the last bundled digits that a network classifies rightly. bf16 also runs on a CPU; how much
time it saves is a matter for a GPU and for benchmarks/speed.py.
"""

import sys
from typing import Any

import torch
from networks import NETWORKS, network
from record import write

import marginattack as ma
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

MODELS = ("mnist-cnn", "mnist-gelu", "mnist-cnn-adv", "mnist-kwta")


def row(name: str, norm: str, number: int) -> dict[str, Any]:
    """One network under one norm."""
    model = network(name) if name in NETWORKS else zoo(name)
    images, labels = samples("mnist")
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).nonzero()[-number:, 0]
    full, coarse = (
        ma.measure(model, images[right], labels[right], norm, budget=400, search=search).distance
        for search in ("float32", "bf16")
    )
    ratio = coarse / full
    found = {
        "model": name, "norm": norm, "n": len(right), "mean ratio": float(ratio.mean()), "worst": float(ratio.max()),
        "lost": int(torch.isinf(coarse).sum()),
    }  # fmt: skip
    print(found, flush=True)
    return found


def main(number: str = "60") -> None:
    write("precision", [row(name, norm, int(number)) for name in MODELS for norm in ("l2", "linf")])


if __name__ == "__main__":
    main(*sys.argv[1:])
