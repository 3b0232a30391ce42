"""MarginAttack against Foolbox's CW and DeepFool on the bundled MNIST network.

    python benchmarks/core.py [mnist.npz] [digits]

The first 500 correctly classified test digits (of the bundled 1,000, or of an mnist.npz), one start, 200 moves; by
default one scan of the classes and the three nearest followed, with the paper's settings ten scans. CW: nine searches
of 1,000 steps at learning rates 0.01 and 0.05, the better of the two medians counts. Passes are counted by a wrapper
around the model for every attack alike.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from record import Counted, write
from torch import Tensor

import marginattack as ma
from marginattack.attacks.presets import preset
from marginattack.core.norms import as_norm
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def foolbox_distance(attack: Any, model: Counted, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """The distance of each of a Foolbox attack's points, infinity where it failed."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
    _, points, success = attack(wrapped, x, y, epsilons=None)
    distance = as_norm(norm).size((points - x).flatten(1).double())[:, 0]
    return torch.where(success, distance, torch.inf)


def attacks() -> dict[str, tuple[str, Callable[[Counted, Tensor, Tensor], Tensor]]]:
    """name: (norm, run)"""
    import foolbox.attacks as fa

    def ours(norm: str, attack: ma.MarginAttack) -> tuple[str, Callable[[Counted, Tensor, Tensor], Tensor]]:
        return norm, lambda model, x, y: ma.measure(model, x, y, norm, attack=attack, batch=500).distance.to(x.device)

    def theirs(norm: str, attack: Any) -> tuple[str, Callable[[Counted, Tensor, Tensor], Tensor]]:
        return norm, lambda model, x, y: foolbox_distance(attack, model, x, y, norm)

    def cw(rate: float) -> Any:
        return fa.L2CarliniWagnerAttack(binary_search_steps=9, steps=1000, stepsize=rate)

    return {
        "MarginAttack l2": ours("l2", ma.MarginAttack()),
        "MarginAttack l2, the paper's settings": ours("l2", one_start("mnist-l2")),
        "Foolbox CW, rate 0.01": theirs("l2", cw(0.01)),
        "Foolbox CW, rate 0.05": theirs("l2", cw(0.05)),
        "Foolbox DeepFool l2": theirs("l2", fa.L2DeepFoolAttack()),
        "MarginAttack linf": ours("linf", ma.MarginAttack()),
        "MarginAttack linf, the paper's settings": ours("linf", one_start("mnist-linf")),
        "Foolbox DeepFool linf": theirs("linf", fa.LinfDeepFoolAttack()),
    }


def one_start(name: str) -> ma.MarginAttack:
    """A preset with one start, at the input."""
    from dataclasses import replace

    return replace(preset(name), restarts=1, radius=0.0)


def digits(path: str | None, count: int) -> tuple[Tensor, Tensor]:
    """The first digits that the network gets right."""
    model = zoo("mnist-cnn").to(DEVICE)
    x, y = samples("mnist") if path is None else load(path)
    x, y = x.to(DEVICE), y.to(DEVICE)
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in x.split(1000)]) == y
    return x[right][:count], y[right][:count]


def load(path: str) -> tuple[Tensor, Tensor]:
    import numpy as np

    with np.load(path) as arrays:
        x, y = torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"])
    return x.unsqueeze(1).float() / 255, y.long()


def main(path: str | None = None, count: str = "500") -> None:
    x, y = digits(path, int(count))
    found: dict[str, Tensor] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, (norm, run) in attacks().items():
        model = Counted(zoo("mnist-cnn").to(DEVICE))
        began = time.perf_counter()
        distance = found[name] = run(model, x, y).cpu()
        rows[name] = {
            "norm": norm, "n": len(x), "median": float(distance.median()), "mean": float(distance.mean()),
            "success": float(distance.isfinite().double().mean()), "seconds": time.perf_counter() - began,
            "passes": (model.forwards + model.backwards) / len(x),
        }  # fmt: skip
        print(f"{name:42} {rows[name]}", flush=True)
    cw = min((rows[f"Foolbox CW, rate {rate}"] for rate in ("0.01", "0.05")), key=lambda row: float(row["median"]))
    us, up = rows["MarginAttack l2"], rows["MarginAttack linf"]
    bars = {
        "l2 median below CW's (bar 2 %)": 1 - us["median"] / cw["median"],
        "CW's passes over ours (bar 15)": cw["passes"] / us["passes"],
        "share strictly below DeepFool l2 (bar 95 %)": float(
            (found["MarginAttack l2"] < found["Foolbox DeepFool l2"]).double().mean()
        ),
        "linf success (bar 100 %)": up["success"],
        "linf median below DeepFool's (bar 8 %)": 1 - up["median"] / rows["Foolbox DeepFool linf"]["median"],
    }
    for bar, value in bars.items():
        print(f"{bar:50} {value:.4f}")
    write("core", {"rows": rows, "bars": bars})


if __name__ == "__main__":
    main(*sys.argv[1:])
