"""Foolbox 3.3.4: its attacks that look for the least perturbation, with the settings of AttackBench."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from marginattack.integrations.guest import Guest
from marginattack.integrations.peer import Entry, Library, Plan, Settings

ORDER = {"l1": 1.0, "l2": 2.0, "linf": torch.inf}


def load() -> Any:
    """The module foolbox."""
    return import_module("foolbox")


def run(foolbox: Any, call: str, settings: Settings, guest: Guest, plan: Plan) -> Tensor:
    """The attack's points. ``{}`` in the name of an attack is its norm."""
    box = (float(guest.problem.lo.min()), float(guest.problem.hi.max()))
    model = foolbox.PyTorchModel(guest.eval(), bounds=box, device=guest.images.device)
    name = call.format({"l1": "L1", "l2": "L2", "linf": "LInf" if "FMN" in call else "Linf"}[plan.norm])
    name = name.replace("LinfBrendel", "LinfinityBrendel")
    more = {"starting_points": others(guest, plan.norm)} if "Brendel" in call else {}
    points: Tensor = getattr(foolbox.attacks, name)(**settings).run(model, guest.images, guest.labels, **more)
    return points


def others(guest: Guest, norm: str) -> Tensor:
    """For each sample the nearest one of another class: adversarial without a look, as all are classified rightly.

    AttackBench starts Brendel and Bethge's attack from the data set too.
    """
    x, y = guest.images.flatten(1), guest.labels
    far = torch.cdist(x, x, p=ORDER[norm]).masked_fill(y[:, None] == y[None, :], torch.inf)
    if not bool(torch.isfinite(far.amin(1)).all()):
        raise ValueError("all samples of the batch are of one class: there is none to start from")
    return guest.images[far.argmin(1)]


def fmn(step: float) -> Any:
    """FMN from a first step."""
    return lambda plan: {"steps": plan.steps, "max_stepsize": step, "gamma": 0.05}


def constants(plan: Plan, cost: int) -> dict[str, Any]:
    """Nine searches for the constant, as published; with few passes two or one, from a constant that may do at once."""
    if plan.passes >= 1000:
        return {"binary_search_steps": 9, "steps": plan.passes // (9 * cost), "initial_const": 1e-3}
    searches = 2 if plan.passes >= 300 else 1
    return {"binary_search_steps": searches, "steps": max(1, plan.passes // (searches * cost)), "initial_const": 1.0}


def cw(plan: Plan) -> dict[str, Any]:
    """One forward and one backward a step; as far in few steps as 1,000 go at the published rate of 0.01."""
    chosen = constants(plan, 2)
    return chosen | {"stepsize": 10 / max(50, chosen["steps"])}


def ead(plan: Plan) -> dict[str, Any]:
    """Two forwards and one backward a step; the published rate, and its double where there are few steps."""
    rate = 0.01 if plan.passes >= 1000 else 0.02
    return constants(plan, 3) | {"initial_stepsize": rate, "regularization": 0.01, "decision_rule": "L1"}


def brendel_bethge(plan: Plan) -> dict[str, Any]:
    """Eleven forwards to the boundary, then steps in a trust region; Foolbox's grows with the size of the batch."""
    return {"steps": max(1, (plan.passes - 12) // 2), "lr": 1e-3, "binary_search_steps": 10}


def deepfool(plan: Plan) -> dict[str, Any]:
    """The published steps; a forward and a backward a candidate and step, until the budget is spent."""
    return {"steps": 50, "candidates": 10, "overshoot": 0.02}


ENTRIES = {
    "ddn": Entry("DDNAttack", ("l2",), lambda plan: {"steps": plan.steps, "init_epsilon": 1.0, "gamma": 0.05}),
    "fmn": Entry("{}FMNAttack", ("l1", "l2"), fmn(1.0)),
    "fmn-10": Entry("{}FMNAttack", ("linf",), fmn(10.0)),
    "fmn-0.5": Entry("{}FMNAttack", ("linf",), fmn(0.5)),
    "cw": Entry("L2CarliniWagnerAttack", ("l2",), cw),
    "deepfool": Entry("{}DeepFoolAttack", ("l2", "linf"), deepfool),
    "ead": Entry("EADAttack", ("l1",), ead),
    "brendel-bethge": Entry("{}BrendelBethgeAttack", ("l1", "l2", "linf"), brendel_bethge, needs=("numba",)),
}

LIBRARY = Library(distribution="Foolbox 3.3.4", load=load, run=run, entries=ENTRIES)
