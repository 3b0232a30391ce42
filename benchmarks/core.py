"""MarginAttack against Foolbox's CW and DeepFool on the bundled MNIST network.

    python benchmarks/core.py [digits] [mnist.npz]

The first correctly classified test digits, 500 by default (of the bundled 1,000, or of an mnist.npz), one start, 200
moves; by default one scan of the classes and the three nearest followed, with the paper's settings ten scans. CW: nine
searches of 1,000 steps at learning rates 0.01 and 0.05, of which the better median counts. A wrapper around the model
counts the passes of every attack.
"""

import sys
import time
from dataclasses import replace
from typing import Any

from parity_common import Inputs, Run, run_foolbox, run_ours
from record import DEVICE, CountingModel, correct_samples, write
from torch import Tensor

import marginattack as ma
from marginattack.attacks.presets import preset
from marginattack.reproduce.models_under_test import read_npz
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo


def from_preset(norm: str) -> Run:
    """The paper's settings with one start, at the input."""
    return run_ours(replace(preset(f"mnist-{norm}"), restarts=1, radius=0.0), norm)


def foolbox_cw(rate: float) -> Run:
    return run_foolbox("L2CarliniWagnerAttack", "l2", binary_search_steps=9, steps=1000, stepsize=rate)


ATTACKS: dict[str, tuple[str, Run]] = {
    "MarginAttack l2": ("l2", run_ours(ma.MarginAttack(), "l2")),
    "MarginAttack l2, the paper's settings": ("l2", from_preset("l2")),
    "Foolbox CW, rate 0.01": ("l2", foolbox_cw(0.01)),
    "Foolbox CW, rate 0.05": ("l2", foolbox_cw(0.05)),
    "Foolbox DeepFool l2": ("l2", run_foolbox("L2DeepFoolAttack", "l2")),
    "MarginAttack linf": ("linf", run_ours(ma.MarginAttack(), "linf")),
    "MarginAttack linf, the paper's settings": ("linf", from_preset("linf")),
    "Foolbox DeepFool linf": ("linf", run_foolbox("LinfDeepFoolAttack", "linf")),
}


def compare(rows: dict[str, dict[str, Any]], distances: dict[str, Tensor]) -> dict[str, float]:
    """The criteria that MarginAttack has to meet."""
    cw = min((rows[f"Foolbox CW, rate {rate}"] for rate in ("0.01", "0.05")), key=lambda row: float(row["median"]))
    l2, linf = rows["MarginAttack l2"], rows["MarginAttack linf"]
    nearer = distances["MarginAttack l2"] < distances["Foolbox DeepFool l2"]
    return {
        "l2 median below CW's (bar 2 %)": 1 - l2["median"] / cw["median"],
        "CW's passes over ours (bar 15)": cw["passes"] / l2["passes"],
        "share strictly below DeepFool l2 (bar 95 %)": float(nearer.double().mean()),
        "linf success (bar 100 %)": linf["success"],
        "linf median below DeepFool's (bar 8 %)": 1 - linf["median"] / rows["Foolbox DeepFool linf"]["median"],
    }


def main(count: str = "500", path: str | None = None) -> None:
    """Run every attack on the digits."""
    images, labels = samples("mnist") if path is None else read_npz([path])
    images, labels = correct_samples(zoo("mnist-cnn").to(DEVICE), images, labels, int(count))
    distances: dict[str, Tensor] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, (norm, run) in ATTACKS.items():
        model = CountingModel(zoo("mnist-cnn").to(DEVICE)).eval()
        began = time.perf_counter()
        distance = distances[name] = run(Inputs(model, images, labels)).cpu()
        rows[name] = {
            "norm": norm, "n": len(images), "median": float(distance.median()), "mean": float(distance.mean()),
            "success": float(distance.isfinite().double().mean()), "seconds": time.perf_counter() - began,
            "passes": (model.forwards + model.backwards) / len(images),
        }  # fmt: skip
        print(f"{name:42} {rows[name]}", flush=True)
    criteria = compare(rows, distances)
    for criterion, value in criteria.items():
        print(f"{criterion:50} {value:.4f}")
    write("core", {"rows": rows, "bars": criteria})


if __name__ == "__main__":
    main(*sys.argv[1:])
