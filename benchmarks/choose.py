"""Every attack that measures margins on the bundled MNIST network: the table of docs/how-to-choose.md.

    python benchmarks/choose.py [digits]

Each attack runs with the settings below on the first bundled digits (fixed-radius attacks through Search), on the first
10 if it runs one sample at a time. Distances are those that measure() has verified.
"""

import sys
import time
from typing import Any

from record import DEVICE, write

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

FEW = 10  # digits for attacks that run one sample at a time

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
ONE_BY_ONE = (LBFGS, OnePixel, Boundary)
# The norms that these are compared in; the others in all that they support
NORMS = {JSMA: ("l0",), OnePixel: ("l0",), FGSM: ("l1", "l2", "linf"), CarliniWagner: ("l2",)}


def main(digits: str = "200") -> None:
    """Run every attack under every norm."""
    model = zoo("mnist-cnn").to(DEVICE)
    x, y = samples("mnist")
    rows: list[dict[str, Any]] = []
    for norm in ("l2", "linf", "l1", "l0"):
        for name, attack in ATTACKS.items():
            norms = NORMS.get(type(attack), attack.norms)
            if norm not in (("linf",) if "DAA" in name else norms):
                continue
            n = FEW if isinstance(attack, ONE_BY_ONE) else int(digits)
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
