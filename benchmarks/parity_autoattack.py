"""Square and APGD against pyautoattack 0.2.0: the same radius, queries or steps, other random numbers."""

from importlib import import_module
from typing import Any

import torch
from parity_common import Comparison, Inputs, Run, run_ours
from torch import Tensor, nn

from marginattack.attacks.apgd import APGD
from marginattack.attacks.square import Square
from marginattack.core.losses import CROSS_ENTROPY, DLR, TARGETED_DLR, Loss
from marginattack.core.norms import as_norm

PEER = "pyautoattack 0.2.0"
NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
RADII = {"linf": 0.2, "l2": 2.0, "l1": 15.0}
QUERIES, STEPS = 300, 30
BATCH = 100  # Square of pyautoattack draws one window per batch, so that digits of a batch succeed together
LOSSES: dict[str, Loss] = {"ce": CROSS_ENTROPY, "dlr": DLR, "t": TARGETED_DLR}
NOTE = "random search: the standard error of a difference on 300 digits is up to 4 points"
LOSS = "theirs lowers the cross-entropy of a target, ours its margin"


def run_theirs(module: str, name: str, norm: str, **settings: Any) -> Run:
    """Distances by an attack of pyautoattack, in batches with a seed each; ``targeted``: towards ``next_class``."""
    targeted = settings.get("targeted", False)

    def attack(model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> Tensor:
        goal = next_class(labels) if targeted else labels
        kind = getattr(import_module(f"pyautoattack.{module}"), name)
        made = kind(model, norm=NAMES[norm], seed=seed, device=images.device, **settings)
        points = made.perturb(images, goal)
        with torch.no_grad():
            reached = (model(points).argmax(1) == goal) == targeted
        size = as_norm(norm).size((points.double() - images.double()).flatten(1))[:, 0]
        return torch.where(reached, size, torch.inf).cpu()

    def run(inputs: Inputs) -> Tensor:
        batches = zip(inputs.images.split(BATCH), inputs.labels.split(BATCH), strict=True)
        return torch.cat([attack(inputs.model, x, y, seed) for seed, (x, y) in enumerate(batches)])

    return run


def next_class(labels: Tensor) -> Tensor:
    """The targets of targeted comparisons."""
    return (labels + 1) % 10


def compare_square(norm: str, eps: float, *, targeted: bool = False) -> Comparison:
    """Square with its own schedule."""
    theirs = {"eps": eps, "n_queries": QUERIES, "p_init": 0.8, "resc_schedule": False, "targeted": targeted}
    targets = (lambda inputs: next_class(inputs.labels)) if targeted else None
    return Comparison(
        attack="square", norm=norm, settings=f"eps {eps:g}, {QUERIES} queries, p = 0.8{', targeted' * targeted}",
        peer=PEER, ours=run_ours(Square(eps=eps, queries=QUERIES), norm, targets), fixed=True, digits=300,
        note=f"{NOTE}; {LOSS}" if targeted else NOTE, theirs=run_theirs("square", "SquareAttack", norm, **theirs),
    )  # fmt: skip


def compare_apgd(network: str, norm: str, eps: float, kind: str) -> Comparison:
    """APGD-CE, APGD-DLR, or APGD-T towards three classes."""
    settings: dict[str, Any] = {"eps": eps, "n_iter": STEPS} | (
        {"n_target_classes": 3} if kind == "t" else {"loss": kind}
    )
    ours = APGD(eps=eps, steps=STEPS, loss=LOSSES[kind], candidates=3 * (kind == "t"))
    name = "APGDAttack_targeted" if kind == "t" else "APGDAttack"
    return Comparison(
        attack=f"apgd-{kind}", norm=norm, settings=f"eps {eps:g}, {STEPS} steps, {network}", peer=PEER, fixed=True,
        ours=run_ours(ours, norm), theirs=run_theirs("autopgd_base", name, norm, **settings), digits=100,
        network=network,
    )  # fmt: skip


COMPARISONS: list[Comparison] = [
    *(compare_square(norm, eps) for norm, eps in RADII.items()),
    compare_square("linf", 0.3, targeted=True),
    compare_square("l2", 3.0, targeted=True),
    *(
        compare_apgd("mnist-cnn", norm, eps, kind)
        for norm, eps in (("linf", 0.1), ("l2", 1.3))
        for kind in ("ce", "dlr", "t")
    ),
]
