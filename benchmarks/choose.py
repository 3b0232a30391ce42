"""Every attack that finds margins, side by side on the bundled MNIST network: what docs/how-to-choose.md is made from.

    python benchmarks/choose.py [digits]

Each attack with the settings below on the first bundled digits (fixed-radius attacks through Search); those that run
one sample at a time on the first 10. Distances are judged after measure()'s re-check.
"""

import sys
import time
from typing import Any

import torch
from record import write

import marginattack as ma
from marginattack.attacks import (
    DAA,
    FGSM,
    JSMA,
    LBFGS,
    PGD,
    Boundary,
    CarliniWagner,
    DeepFool,
    LogitDifferenceAttack,
    MarginAttack,
    OnePixel,
    Race,
    Search,
)
from marginattack.attacks.attack import Attack
from marginattack.core.losses import MARGIN
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ONE_BY_ONE = 10

ATTACKS: dict[str, Attack] = {
    "Race, the default": Race(),
    "Race, 100 passes": Race(passes=100),
    "MarginAttack": MarginAttack(),
    "MarginAttack, 50 moves": MarginAttack(moves=50, closing=5),
    "FGSM, step searched": FGSM(loss=MARGIN),
    "Search over PGD": Search(),
    "Search over logit difference": Search(attack=LogitDifferenceAttack(steps=20, step=0.1, candidates=3)),
    "Search over DAA": Search(attack=DAA(steps=20, step=0.1, particles=3, loss=MARGIN)),
    "Search over BIM": Search(attack=PGD(steps=10, step=0.2, random=False)),
    "DeepFool": DeepFool(),
    "Carlini–Wagner, 3 × 200": CarliniWagner(searches=3, steps=200, rate=0.05, initial=0.1),
    "L-BFGS": LBFGS(),
    "JSMA": JSMA(),
    "One pixel, 5 pixels": OnePixel(pixels=5, generations=20),
    "Boundary, 500 steps": Boundary(steps=500),
}
SLOW = (LBFGS, OnePixel, Boundary)
NATURAL = {
    JSMA: ("l0",),
    OnePixel: ("l0",),
    FGSM: ("l1", "l2", "linf"),
    CarliniWagner: ("l2",),
}  # others: the norms that they declare


def main(digits: str = "200") -> None:
    model = zoo("mnist-cnn").to(DEVICE)
    x, y = samples("mnist")
    rows: list[dict[str, Any]] = []
    for norm in ("l2", "linf", "l1", "l0"):
        for name, attack in ATTACKS.items():
            norms = NATURAL.get(type(attack), attack.norms)
            if norm not in (("linf",) if "DAA" in name else norms):
                continue
            n = ONE_BY_ONE if isinstance(attack, SLOW) else int(digits)
            began = time.perf_counter()
            m = ma.measure(model, x[:n], y[:n], norm, attack=attack, batch=n)
            summary = m.summary()
            rows.append({
                "norm": norm, "attack": name, "settings": repr(attack), "n": summary["measured"],
                "median": summary["median"], "success": summary["success"],
                "passes": summary["forwards"] + summary["backwards"], "seconds": time.perf_counter() - began,
            })  # fmt: skip
            print({key: value for key, value in rows[-1].items() if key != "settings"}, flush=True)
    write("choose", rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
