"""Square and APGD against pyautoattack 0.2.0: the same radius, queries or steps, other random numbers."""

from importlib import import_module
from typing import Any

import torch
from parity_common import Comparison, Inputs, Run, run_ours
from torch import Tensor

from marginattack.attacks.apgd import APGD
from marginattack.attacks.square import Square
from marginattack.core.losses import CROSS_ENTROPY, DLR, TARGETED_DLR, Loss
from marginattack.core.norms import as_norm

PEER = "pyautoattack 0.2.0"
NAMES = {"linf": "Linf", "l2": "L2", "l1": "L1"}
RADII = {("mnist-cnn-adv", "linf"): 0.3, ("mnist-cnn", "l2"): 2.0, ("mnist-cnn", "l1"): 15.0}
QUERIES, STEPS = 300, 30
LOSSES: dict[str, Loss] = {"ce": CROSS_ENTROPY, "dlr": DLR, "t": TARGETED_DLR}
NOTE = "random search: the standard error of a success rate on 100 digits is up to 5 points"


def run_theirs(module: str, name: str, norm: str, **settings: Any) -> Run:
    """Distances by an attack of pyautoattack, all inputs in one batch."""

    def run(inputs: Inputs) -> Tensor:
        attack = getattr(import_module(f"pyautoattack.{module}"), name)(
            inputs.model, norm=NAMES[norm], seed=0, device=inputs.images.device, **settings
        )
        points = attack.perturb(inputs.images, inputs.labels)
        with torch.no_grad():
            fooled = inputs.model(points).argmax(1) != inputs.labels
        size = as_norm(norm).size((points.double() - inputs.images.double()).flatten(1))[:, 0]
        return torch.where(fooled, size, torch.inf).cpu()

    return run


def compare_square(network: str, norm: str, eps: float) -> Comparison:
    """Square with its own schedule."""
    theirs = {"eps": eps, "n_queries": QUERIES, "p_init": 0.8, "resc_schedule": False}
    return Comparison(
        attack="square", norm=norm, settings=f"eps {eps:g}, {QUERIES} queries, p = 0.8, {network}", peer=PEER,
        ours=run_ours(Square(eps=eps, queries=QUERIES), norm), fixed=True, digits=100, note=NOTE, network=network,
        theirs=run_theirs("square", "SquareAttack", norm, **theirs),
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
    *(compare_square(network, norm, eps) for (network, norm), eps in RADII.items()),
    *(
        compare_apgd("mnist-cnn", norm, eps, kind)
        for norm, eps in (("linf", 0.1), ("l2", 1.3))
        for kind in ("ce", "dlr", "t")
    ),
]
