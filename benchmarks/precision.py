"""The cost of a search in bf16: margins with it over margins without, on networks of the suite.

    PYTHONPATH=src:benchmarks python benchmarks/precision.py [DIGITS]

Race with 400 passes, on the last bundled digits that a network classifies correctly. bf16 also runs on a CPU; the time
that it saves on a GPU is measured by benchmarks/speed.py.
"""

import sys
from typing import Any

import torch
from networks import network
from record import correct_samples, write

import marginattack as ma
from marginattack.sources.data import samples

MODELS = ("mnist-cnn", "mnist-gelu", "mnist-cnn-adv", "mnist-kwta")


def compare_precisions(name: str, norm: str, number: int) -> dict[str, Any]:
    """One network under one norm."""
    model = network(name)
    images, labels = (part[-number:] for part in correct_samples(model, *samples("mnist")))
    float32, bf16 = (
        ma.measure(model, images, labels, norm, budget=400, precision=precision).distance for precision in ("float32", "bf16")
    )
    ratio = bf16 / float32
    numbers = {
        "model": name, "norm": norm, "n": len(images), "mean ratio": float(ratio.mean()), "worst": float(ratio.max()),
        "lost": int(torch.isinf(bf16).sum()),
    }  # fmt: skip
    print(numbers, flush=True)
    return numbers


def main(number: str = "60") -> None:
    """Compare on every model under ℓ2 and ℓ∞."""
    write("precision", [compare_precisions(name, norm, int(number)) for name in MODELS for norm in ("l2", "linf")])


if __name__ == "__main__":
    main(*sys.argv[1:])
