"""torchattacks 3.5.1 (Kim): attacks on images in [0, 1], with as many steps as the budget allows."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack, ProblemInfo
from marginattack.attacks.external.problem_module import ProblemModule

NORMS = {"l2": "L2", "linf": "Linf"}
EPS = 8 / 255  # its own default
PGD_STEP = 2.5  # total length of the steps of PGD, in radii


def run(function: str, settings: dict[str, Any], model: ProblemModule) -> Tensor:
    """Call the attack and return its points."""
    attack = getattr(import_module("torchattacks"), function)(model.eval(), **settings)
    points: Tensor = attack(model.images.float(), model.labels)
    return points


def pgd(info: ProblemInfo) -> dict[str, Any]:
    """Two passes per step."""
    eps = info.eps or EPS
    return {"eps": eps, "alpha": PGD_STEP * eps / info.steps, "steps": info.steps}


def within(info: ProblemInfo, **settings: Any) -> dict[str, Any]:
    """An attack with AutoAttack's settings, of two passes per step."""
    return {"norm": NORMS[info.norm], "eps": info.eps, "steps": max(2, info.steps - 2)} | settings


def fab(info: ProblemInfo) -> dict[str, Any]:
    """Each step costs two forwards, and a backward per class."""
    return within(info, steps=max(1, (info.budget - 1) // (info.classes + 1)), n_classes=info.classes)


def square(info: ProblemInfo) -> dict[str, Any]:
    """One forward per step."""
    return {"norm": NORMS[info.norm], "eps": info.eps, "n_queries": info.budget}


def make(
    name: str, function: str, norms: tuple[str, ...], settings: Callable[[ProblemInfo], Any], eps: float | None
) -> ExternalAttack:
    """An attack under this name."""
    load = partial(import_module, "torchattacks")
    return ExternalAttack(
        f"torchattacks:{name}", function, norms, settings, "torchattacks 3.5.1", load, run, eps=eps,
        gradient_free=name == "square",
    )  # fmt: skip


BOTH = tuple(NORMS)
ATTACKS = (
    make("pgd", "PGD", ("linf",), pgd, EPS),
    make("pgd-l2", "PGDL2", ("l2",), pgd, 1.0),
    make("apgd-ce", "APGD", BOTH, partial(within, loss="ce"), EPS),
    make("apgd-dlr", "APGD", BOTH, partial(within, loss="dlr"), EPS),
    make("fab", "FAB", BOTH, fab, EPS),
    make("square", "Square", BOTH, square, EPS),
    make("cw", "CW", ("l2",), lambda info: {"steps": info.steps}, None),
    make("deepfool", "DeepFool", ("l2",), lambda info: {"steps": max(1, info.budget // (info.classes + 1))}, None),
)
