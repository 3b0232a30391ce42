r"""What low precision changes: margins with it over margins in float32, on networks of the suite and of the zoo.

    PYTHONPATH=src:benchmarks python benchmarks/precision.py [--inputs 60] [--models NAME …] [--data cifar10=FILE.npz] \
        [--attacks race pgd@0.1 …] [--budgets 400 …] [--norms l2 linf] [--precision chosen] [--record NAME]

Race with 400 passes, on the last digits or images that a network classifies correctly; of CIFAR-10 only 100 images are
bundled. On a GPU the default precision, on a CPU bf16, which is float32 by default there; with ``--precision chosen``
the one that the calibration of a GPU would choose, whatever the attack, norm and budget. Budget 0 is none: what the
attack itself spends. "other seed" is the same ratio for a second run in float32: what random draws change. Ratios are
of samples that both runs found; "lost" and "gained" count the others. "± mean ratio" is its standard error. "logit
error" is the largest change of a logit in that precision, and that of the median input, as shares of the median lead of
the highest logit, by which a precision is chosen. ``--processes`` at a time, each for one row. The time is measured by
benchmarks/speed.py.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from networks import network
from record import CUDA, DEVICE, correct_samples, run_child, write
from torch import Tensor

import marginattack as ma
from marginattack.execution import precision
from marginattack.execution.session import Session, open_session
from marginattack.sources.data import samples

MODELS = ("mnist-cnn", "mnist-gelu", "mnist-cnn-adv", "mnist-kwta", "cifar10-resnet32", "cifar10-resnet32-adv")


def read(data: str, files: dict[str, str]) -> tuple[Tensor, Tensor]:
    """The images and labels of a data set: bundled, or x and y of a file."""
    if data not in files:
        return samples(data)
    with np.load(files[data]) as arrays:
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return x.permute(0, 3, 1, 2).float() / 255, y.long()


def chosen_precision(session: Session, images: Tensor) -> str:
    """The precision that the calibration chooses on a device that is faster in 16 bits."""
    with patch.object(precision, "has_low_precision", lambda device: True):
        return precision.choose_precision(session.evaluator(), images, session.logits(images))


def compare_precisions(options: argparse.Namespace) -> dict[str, Any]:
    """One network under one norm, for one attack and budget."""
    (name,), (norm,), (attack,), (budget,) = options.models, options.norms, options.attacks, options.budgets
    files = dict(entry.split("=", 1) for entry in options.data)
    model = network(name).to(DEVICE)
    data = correct_samples(model, *read(name.split("-")[0], files))
    images, labels = (part[-options.inputs :].cpu() for part in data)

    def measure(precision: str, seed: int = 0) -> ma.Margins:
        margins: ma.Margins = ma.measure(
            model, images, labels, norm, attack=attack, budget=budget or None, precision=precision, seed=seed,
            batch=512, diagnose=False,
        )  # fmt: skip
        return margins

    with open_session(ma.Classifier(model)) as session:
        batch = session.validate(images, labels)
        logits, exact = session.logits(batch.images), session.evaluator()
        errors = {
            low: precision.logit_error(replace(exact, precision=low), batch.images, logits) for low in ("fp16", "bf16")
        }
        search = chosen_precision(session, batch.images) if options.precision == "chosen" else options.precision
    full, low, again = measure("float32"), measure(search), measure("float32", seed=1)
    return {
        "model": name, "norm": norm, "attack": attack, "budget": budget, "n": len(images),
        "precision": low.settings["precision"],
        "passes": float((low.forwards + low.backwards).double().mean()), **ratios(low, full),
        **{f"other seed: {key}": value for key, value in ratios(again, full).items()}, "logit error": errors,
    }  # fmt: skip


def ratios(found: ma.Margins, full: ma.Margins) -> dict[str, float]:
    """The distances of one run over those of another, of samples that both found."""
    both = found.success & full.success
    a, b = found.distance[both], full.distance[both]
    ratio = a / b
    return {
        "ratio of means": float(a.mean() / b.mean()), "mean ratio": float(ratio.mean()),
        "± mean ratio": float(ratio.std() / len(ratio) ** 0.5), "median ratio": float(ratio.median()),
        "worst": float(ratio.max()), "above 1.05": int((ratio > 1.05).sum()), "below 0.95": int((ratio < 0.95).sum()),
        "lost": int((full.success & ~found.success).sum()), "gained": int((found.success & ~full.success).sum()),
    }  # fmt: skip


def main() -> None:
    """Compare on the chosen models, norms, attacks and budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=60)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--norms", nargs="+", default=["l2", "linf"], metavar="NORM")
    parser.add_argument("--attacks", nargs="+", default=["race"], metavar="ATTACK")
    parser.add_argument("--budgets", nargs="+", type=int, default=[400], metavar="PASSES")
    parser.add_argument("--precision", default="auto" if CUDA else "bf16")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--record", default=f"precision-{DEVICE}" if CUDA else "precision", metavar="NAME")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    rows = list(product(options.models, options.norms, options.attacks, options.budgets))
    if len(rows) == 1:
        print(json.dumps(compare_precisions(options)))
        return

    def compare(row: tuple[str, str, str, int]) -> dict[str, Any]:
        words = zip(("--models", "--norms", "--attacks", "--budgets"), row, strict=True)
        data = ["--data", *options.data] if options.data else []
        shared = ["--inputs", options.inputs, "--precision", options.precision]
        numbers = run_child(__file__, *(word for pair in words for word in pair), *shared, *data)
        print(numbers, flush=True)
        return numbers

    with ThreadPoolExecutor(options.processes) as pool:
        write(options.record, list(pool.map(compare, rows)))


if __name__ == "__main__":
    main()
