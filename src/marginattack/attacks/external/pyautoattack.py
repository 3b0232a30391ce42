"""pyautoattack 0.2.0 (Croce, Hein): AutoAttack and its parts, attacks within a fixed radius of images in [0, 1]."""

import logging
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack, ProblemInfo
from marginattack.attacks.external.problem_module import ProblemModule
from marginattack.core.problem import Problem
from marginattack.errors import InputError

NORMS = {"l1": "L1", "l2": "L2", "linf": "Linf"}
EPS = 0.3  # its own default
logging.getLogger("auto-attack").addHandler(logging.NullHandler())  # else its messages are printed
STEPS, TARGETS, QUERIES = 100, 9, 5000  # of the standard version


def run(function: str, settings: dict[str, Any], model: ProblemModule) -> Tensor:
    """Call the attack and return its points."""
    images, problem = model.images, model.problem
    module, _, name = function.rpartition(".")
    check(problem, name)

    def predict(x: Tensor) -> Tensor:  # it computes in float32
        return model(x.to(images)).float()  # type: ignore[no-any-return]

    made = getattr(import_module(f"pyautoattack.{module}"), name)(
        predict, seed=problem.draws.seed, device=images.device, **settings
    )
    if name == "AutoAttack":
        for part in (made.apgd_targeted, made.fab):  # the standard number is for ten classes or more
            part.n_target_classes = min(part.n_target_classes, problem.evaluator.classes - 1)
        return made.run_standard_evaluation(images.float(), model.labels, batch_size=len(images))[0]  # type: ignore[no-any-return]
    return made.perturb(images.float(), model.labels)  # type: ignore[no-any-return]


def check(problem: Problem, name: str) -> None:
    """Raise InputError for inputs and models that the library does not support."""
    if name in ("SquareAttack", "AutoAttack") and len(problem.shape) != 3:
        raise InputError(f"AutoAttack's {name} needs images (channels, height, width), not inputs {problem.shape}")
    if name in ("APGDAttack_targeted", "AutoAttack") and problem.evaluator.classes < 4:
        raise InputError(f"AutoAttack's {name} needs 4 classes, not {problem.evaluator.classes}: choose another attack")


def steps_within(info: ProblemInfo, runs: int, passes: int) -> int:
    """As many steps per run as the budget allows, at most those of the standard version."""
    return max(2, min(STEPS, (info.budget // runs - 2) // passes - 1))


def apgd(info: ProblemInfo, **settings: Any) -> dict[str, Any]:
    """APGD; a budget beyond one run is spent on further restarts. In ℓ1 the radius shrinks in three stages."""
    steps = steps_within(info, 1, 2)
    restarts = max(1, info.budget // (2 * steps + 8))
    return settings | {"n_iter": steps, "n_restarts": restarts, "use_largereps": info.norm == "l1"}


def targeted(info: ProblemInfo, passes: int) -> dict[str, Any]:
    """One run per class, the likeliest first, of at least ten steps each."""
    classes = max(1, min(TARGETS, info.classes - 1, info.budget // (10 * passes)))
    return {"n_target_classes": classes, "n_iter": steps_within(info, classes, passes)}


def fab(info: ProblemInfo) -> dict[str, Any]:
    """Each step costs two forwards and a backward per class; a budget beyond one run is spent on restarts."""
    cost = info.classes + 2
    steps = max(1, min(STEPS, (info.budget - 1) // cost))
    return {"n_iter": steps, "n_restarts": max(1, info.budget // (cost * steps + 1))}


def standard(info: ProblemInfo) -> dict[str, Any]:
    """The standard version for any budget; it ends early if the budget is smaller."""
    return {"version": "standard"}


def attack(name: str, function: str, choose: Callable[[ProblemInfo], dict[str, Any]]) -> ExternalAttack:
    """An attack under this name."""

    def settings(info: ProblemInfo) -> dict[str, Any]:
        return {"norm": NORMS[info.norm], "eps": info.eps} | choose(info)

    load = partial(import_module, "pyautoattack")
    return ExternalAttack(
        f"autoattack:{name}", function, tuple(NORMS), settings, "pyautoattack 0.2.0", load, run, eps=EPS,
        gradient_free=name == "square",
    )  # fmt: skip


ATTACKS = (
    attack("standard", "autoattack.AutoAttack", standard),
    attack("apgd-ce", "autopgd_base.APGDAttack", partial(apgd, loss="ce")),
    attack("apgd-dlr", "autopgd_base.APGDAttack", partial(apgd, loss="dlr")),
    attack("apgd-t", "autopgd_base.APGDAttack_targeted", partial(targeted, passes=2)),
    attack("fab", "fab_pt.FABAttack_PT", fab),
    attack("fab-t", "fab_pt.FABAttack_PT", lambda info: targeted(info, 3) | {"targeted": True}),
    attack(
        "square",
        "square.SquareAttack",
        lambda info: {"n_queries": min(QUERIES, info.budget), "p_init": 0.8, "resc_schedule": False},
    ),
)
