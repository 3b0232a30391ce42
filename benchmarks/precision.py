"""What low precision changes: margins with it over margins in float32, on networks of the suite and of the zoo.

    PYTHONPATH=src:benchmarks python benchmarks/precision.py [--inputs 60] [--models NAME …] [--data cifar10=FILE.npz]

Race with 400 passes, on the last digits or images that a network classifies correctly; of CIFAR-10 only 100 images are
bundled. On a GPU the default precision, on a CPU bf16, which is float32 by default there. "other seed" is the same
ratio for a second run in float32: what random draws change. "± mean ratio" is its standard error. "logit error" is the
largest change of a logit in that precision, and that of the median input, as shares of the median lead of the highest
logit, by which a precision is chosen. ``--processes`` at a time, each for one network and norm. The time is measured by
benchmarks/speed.py.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from networks import network
from record import CUDA, DEVICE, correct_samples, run_child, write
from torch import Tensor

import marginattack as ma
from marginattack.execution.precision import logit_error
from marginattack.execution.session import open_session
from marginattack.sources.data import samples

MODELS = ("mnist-cnn", "mnist-gelu", "mnist-cnn-adv", "mnist-kwta", "cifar10-resnet32", "cifar10-resnet32-adv")


def read(data: str, files: dict[str, str]) -> tuple[Tensor, Tensor]:
    """The images and labels of a data set: bundled, or x and y of a file."""
    if data not in files:
        return samples(data)
    with np.load(files[data]) as arrays:
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return x.permute(0, 3, 1, 2).float() / 255, y.long()


def compare_precisions(name: str, norm: str, number: int, files: dict[str, str]) -> dict[str, Any]:
    """One network under one norm."""
    model = network(name).to(DEVICE)
    images, labels = (part[-number:].cpu() for part in correct_samples(model, *read(name.split("-")[0], files)))

    def measure(precision: str, seed: int = 0) -> ma.Margins:
        return ma.measure(model, images, labels, norm, budget=400, precision=precision, seed=seed, batch=512)

    with open_session(ma.Classifier(model)) as session:
        batch = session.validate(images, labels)
        logits, exact = session.logits(batch.images), session.evaluator()
        errors = {low: logit_error(replace(exact, precision=low), batch.images, logits) for low in ("fp16", "bf16")}
    full, low, again = measure("float32"), measure("auto" if CUDA else "bf16"), measure("float32", seed=1)
    ratio, other = low.distance / full.distance, again.distance / full.distance
    return {
        "model": name, "norm": norm, "n": len(images), "precision": low.settings["precision"],
        "ratio of means": float(low.distance.mean() / full.distance.mean()), "mean ratio": float(ratio.mean()),
        "± mean ratio": float(ratio.std() / len(ratio) ** 0.5), "median ratio": float(ratio.median()),
        "worst": float(ratio.max()), "above 1.05": int((ratio > 1.05).sum()), "below 0.95": int((ratio < 0.95).sum()),
        "lost": int((low.success < full.success).sum()), "other seed: mean ratio": float(other.mean()),
        "other seed: ratio of means": float(again.distance.mean() / full.distance.mean()),
        "other seed: above 1.05": int((other > 1.05).sum()), "logit error": errors,
    }  # fmt: skip


def main() -> None:
    """Compare on the chosen models under ℓ2 and ℓ∞."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=60)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--norms", nargs="+", default=["l2", "linf"], metavar="NORM")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if len(options.models) == len(options.norms) == 1:
        files = dict(entry.split("=", 1) for entry in options.data)
        print(json.dumps(compare_precisions(options.models[0], options.norms[0], options.inputs, files)))
        return

    def compare(name: str, norm: str) -> dict[str, Any]:
        data = ["--data", *options.data] if options.data else []
        numbers = run_child(__file__, "--inputs", options.inputs, "--models", name, "--norms", norm, *data)
        print(numbers, flush=True)
        return numbers

    pairs = [(name, norm) for name in options.models for norm in options.norms]
    with ThreadPoolExecutor(options.processes) as pool:
        write(f"precision-{DEVICE}" if CUDA else "precision", list(pool.map(compare, *zip(*pairs, strict=True))))


if __name__ == "__main__":
    main()
