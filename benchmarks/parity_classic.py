"""DeepFool, Carlini–Wagner, L-BFGS and Boundary against Foolbox 3.3.4 with the same settings.

Foolbox is imported when a row runs. The sizes of the runs are the constants below.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from rows import Bench, Row
from torch import Tensor

import marginattack as ma
from marginattack.attacks.attack import Attack
from marginattack.attacks.boundary import Boundary
from marginattack.attacks.carlini_wagner import CarliniWagner
from marginattack.attacks.deepfool import DeepFool
from marginattack.attacks.lbfgs import LBFGS
from marginattack.core.draws import uniform
from marginattack.core.norms import as_norm

STEPS, CANDIDATES, OVERSHOOT = 50, 10, 0.02  # DeepFool
SEARCHES, DESCENT, RATES, INITIAL = 9, 300, (0.05, 0.01), 1e-3  # Carlini–Wagner
SHORT = 300  # steps of the Carlini–Wagner that L-BFGS stands against
WALK = 300  # Boundary
FEW = 20  # digits where samples run one at a time


def ours(attack: Attack, norm: str) -> Callable[[Bench], Tensor]:
    """Distances by measure()."""

    def run(bench: Bench) -> Tensor:
        return ma.measure(
            bench.model, bench.images, bench.labels, norm, attack=attack, batch=len(bench.images)
        ).distance

    return run


def foolbox(name: str, norm: str, **settings: Any) -> Callable[[Bench], Tensor]:
    """Distances by the Foolbox attack of that name, all digits in one batch."""

    def run(bench: Bench) -> Tensor:
        fb = import_module("foolbox")
        model = fb.PyTorchModel(bench.model, bounds=(0, 1), device=bench.images.device)
        points, _, success = getattr(fb.attacks, name)(**settings)(model, bench.images, bench.labels, epsilons=None)
        size = as_norm(norm).size((points.double() - bench.images.double()).flatten(1))[:, 0]
        return torch.where(success, size, torch.inf).cpu()

    return run


def walked(bench: Bench) -> Tensor:
    """Foolbox's Boundary one digit at a time, seeded as ours is: the same walk, seen without the adapter."""
    pixels = bench.images[0].numel()
    seeds = uniform(torch.arange(len(bench.images)), pixels, seed=0, draw=torch.tensor(1), like=bench.images[:1])[:, 0]
    walk = foolbox("BoundaryAttack", "l2", steps=WALK)
    parts = []
    for row, seed in enumerate(seeds):
        torch.manual_seed(int(seed * 2**24))
        parts.append(walk(Bench(bench.model, bench.images[row : row + 1], bench.labels[row : row + 1])))
    return torch.cat(parts)


DEEPFOOL = DeepFool(steps=STEPS, candidates=CANDIDATES, overshoot=OVERSHOOT)

ROWS: list[Row] = [
    *(
        Row(
            attack="DeepFool", norm=norm, settings=f"{STEPS} steps, {CANDIDATES} classes, overshoot {OVERSHOOT}",
            peer=f"Foolbox 3.3.4 {name}", ours=ours(DEEPFOOL, norm),
            theirs=foolbox(name, norm, steps=STEPS, candidates=CANDIDATES, overshoot=OVERSHOOT),
        )
        for norm, name in (("l2", "L2DeepFoolAttack"), ("linf", "LinfDeepFoolAttack"))
    ),
    *(
        Row(
            attack="Carlini–Wagner", norm="l2",
            settings=f"{SEARCHES} × {DESCENT} steps, rate {rate}, first m {INITIAL}",
            peer="Foolbox 3.3.4 L2CarliniWagnerAttack",
            ours=ours(CarliniWagner(searches=SEARCHES, steps=DESCENT, rate=rate, initial=INITIAL), "l2"),
            theirs=foolbox("L2CarliniWagnerAttack", "l2", binary_search_steps=SEARCHES, steps=DESCENT, stepsize=rate,
                           initial_const=INITIAL),
            note="both abort early, ours each sample by itself",
        )
        for rate in RATES
    ),
    Row(
        attack="L-BFGS", norm="l2", settings=repr(LBFGS()),
        peer=f"our own Carlini–Wagner, {SEARCHES} × {SHORT} steps, rate 0.05, no public peer",
        ours=ours(LBFGS(), "l2"),
        theirs=ours(CarliniWagner(searches=SEARCHES, steps=SHORT, rate=0.05, initial=INITIAL), "l2"), digits=FEW,
        note="no maintained library has it (Foolbox dropped it with version 3), so it stands against another method "
        "that spends four times the passes",
    ),
    Row(
        attack="Boundary", norm="l2", settings=f"{WALK} steps", peer="Foolbox 3.3.4 BoundaryAttack",
        ours=ours(Boundary(steps=WALK), "l2"), theirs=walked, digits=FEW,
        note="an adapter: the same walk from the same seeds, one digit at a time; far from converged",
    ),
]  # fmt: skip
