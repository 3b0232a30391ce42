"""Foolbox 3.3.4: its minimum-norm attacks, with AttackBench's settings."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack, ProblemInfo, fmn_variants
from marginattack.attacks.external.problem_module import ProblemModule


def run(function: str, settings: dict[str, Any], model: ProblemModule) -> Tensor:
    """Call the attack and return its points. ``{}`` in the name of an attack is replaced by the norm."""
    foolbox, norm = import_module("foolbox"), model.problem.norm.name
    wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device=model.images.device)
    name = function.format({"l0": "L0", "l1": "L1", "l2": "L2", "linf": "LInf" if "FMN" in function else "Linf"}[norm])
    name = name.replace("LinfBrendel", "LinfinityBrendel")
    start = {"starting_points": other_class_starts(model)} if "Brendel" in function else {}
    points: Tensor = getattr(foolbox.attacks, name)(**settings).run(wrapped, model.images, model.labels, **start)
    return points


def other_class_starts(model: ProblemModule) -> Tensor:
    """For each sample the nearest sample of another class, which is adversarial, as all are classified correctly.

    AttackBench also starts Brendel and Bethge's attack from the data set.
    """
    x, y = model.images.flatten(1), model.labels
    distance = torch.cdist(x, x, p=ProblemInfo.of(model.problem).p).masked_fill(y[:, None] == y[None, :], torch.inf)
    if not bool(torch.isfinite(distance.amin(1)).all()):
        raise ValueError("all samples of the batch are of one class, but starts need another: include a second class")
    return model.images[distance.argmin(1)]


def search_constant(info: ProblemInfo, passes_per_step: int) -> dict[str, Any]:
    """Nine searches for the constant, as published; below 1,000 passes two or one, from a larger constant."""
    searches = 9 if info.budget >= 1000 else 2 if info.budget >= 300 else 1
    steps = max(1, info.budget // (searches * passes_per_step))
    return {"binary_search_steps": searches, "steps": steps, "initial_const": 1e-3 if searches == 9 else 1.0}


def cw(info: ProblemInfo) -> dict[str, Any]:
    """One forward and one backward per step; few steps use a larger rate to cover the distance of 1,000 at 0.01."""
    settings = search_constant(info, 2)
    return settings | {"stepsize": 10 / max(50, settings["steps"])}


def ead(info: ProblemInfo) -> dict[str, Any]:
    """Two forwards and one backward per step; the published rate, doubled below 1,000 passes."""
    rate = 0.01 if info.budget >= 1000 else 0.02
    return search_constant(info, 3) | {"initial_stepsize": rate, "regularization": 0.01, "decision_rule": "L1"}


def brendel_bethge(info: ProblemInfo) -> dict[str, Any]:
    """Eleven forwards to the boundary, then steps in a trust region, which Foolbox scales with the batch size."""
    return {"steps": max(1, (info.budget - 12) // 2), "lr": 1e-3, "binary_search_steps": 10}


def deepfool(info: ProblemInfo) -> dict[str, Any]:
    """The published settings; a step costs a forward and a backward per candidate, until the budget is spent."""
    return {"steps": 50, "candidates": 10, "overshoot": 0.02}


attack = partial(ExternalAttack, distribution="Foolbox 3.3.4", load=partial(import_module, "foolbox"), run=run)
ATTACKS = (
    attack("foolbox:ddn", "DDNAttack", ("l2",), lambda i: {"steps": i.steps, "init_epsilon": 1.0, "gamma": 0.05}),
    *fmn_variants(
        attack, "foolbox", "{}FMNAttack", lambda i, step: {"steps": i.steps, "max_stepsize": step, "gamma": 0.05}
    ),
    attack("foolbox:cw", "L2CarliniWagnerAttack", ("l2",), cw),
    attack("foolbox:deepfool", "{}DeepFoolAttack", ("l2", "linf"), deepfool),
    attack("foolbox:ead", "EADAttack", ("l1",), ead),
    attack(
        "foolbox:brendel-bethge",
        "{}BrendelBethgeAttack",
        ("l0", "l1", "l2", "linf"),
        brendel_bethge,
        requires=("numba",),
    ),
)
