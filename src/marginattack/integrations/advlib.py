"""adv-lib 0.2.8 (Rony): its attacks with the settings of AttackBench, steps for the budget."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from math import inf
from types import ModuleType
from typing import Any

from torch import Tensor

from marginattack.integrations.guest import Guest
from marginattack.integrations.peer import Entry, Library, Plan, Settings

ORDER = {"l1": 1, "l2": 2, "linf": inf}
ALL = ("l1", "l2", "linf")


def load() -> Any:
    """adv_lib.attacks, with what it imports but no attack uses put aside.

    Its logger wants visdom, a plotting server; its LPIPS distance wants torchvision. Both are asked for at import,
    neither by an attack on ℓp norms, so empty modules stand in where they are missing.
    """
    import_module("adv_lib")
    _stand_in("visdom", "Visdom")
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):  # RuntimeError: torchvision without its C++ operators
        _stand_in("adv_lib.distances.lpips", "LPIPS")
    return import_module("adv_lib.attacks")


def _stand_in(name: str, attribute: str) -> None:
    try:
        import_module(name)
    except (ImportError, RuntimeError):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)  # others ask for it when they look whether the module is there
        setattr(module, attribute, None)
        sys.modules[name] = module


def run(attacks: Any, call: str, settings: Settings, guest: Guest, plan: Plan) -> Tensor:
    """The attack's points."""
    # minimal_apgd is not among the names that adv_lib.attacks exports
    home = import_module("adv_lib.attacks.auto_pgd") if call == "minimal_apgd" else attacks
    points: Tensor = getattr(home, call)(guest, guest.images.clone(), guest.labels, **settings)
    return points


def fmn(step: float) -> Any:
    """FMN from a first step: AttackBench takes 1, and 10 for ℓ∞ as its authors do."""
    return lambda plan: {"norm": ORDER[plan.norm], "steps": plan.steps, "α_init": step, "γ_init": 0.05}


def alma(plan: Plan) -> dict[str, Any]:
    """Its authors average less over 100 steps than over 1,000: α = 0.5 and 0.9."""
    first, average = {"l1": 0.5, "l2": 0.1}[plan.norm], 0.5 if plan.steps <= 100 else 0.9
    return {"distance": plan.norm, "num_steps": plan.steps, "init_lr_distance": first, "α": average}


def fab(plan: Plan) -> dict[str, Any]:
    """Two forwards and a backward a class each step."""
    return {"norm": ORDER[plan.norm], "n_iter": max(1, (plan.passes - 1) // (plan.classes + 1))}


def fab_targeted(plan: Plan) -> dict[str, Any]:
    """Towards the likeliest classes in turn, three passes a step: one class for every hundred passes, nine at most."""
    targets = max(1, min(9, plan.classes - 1, plan.passes // 100))
    steps = max(1, ((plan.passes - 1) // targets - 1) // 3)
    return {"norm": ORDER[plan.norm], "n_iter": steps, "restarts": targets, "targeted_restarts": True}


def trust_region(adaptive: bool) -> Any:
    """Ten backwards to choose the class, then three passes a step, four where the radius adapts."""

    def settings(plan: Plan) -> dict[str, Any]:
        left = plan.passes - 2 - min(9, plan.classes - 1)
        return {
            "p": ORDER[plan.norm], "iter": max(1, left // (4 if adaptive else 3)), "adaptive": adaptive, "eps": 0.001,
            "c": 9,
        }  # fmt: skip

    return settings


def apgd(targeted: bool) -> Any:
    """Bisection of the radius below twice ``max_eps``; AttackBench's loss, and its three-stage radius for ℓ1."""

    def settings(plan: Plan) -> dict[str, Any]:
        largest = {"l1": 30.0, "l2": 2.0, "linf": 0.25 if plan.grey else 16 / 255}[plan.norm]
        targets = max(1, min(5, plan.classes - 1, round(plan.passes / 250))) if targeted else 1
        runs = plan.searches * (1 + targets) / 2  # half the radii are too large, and their first class does
        looks = 2 * runs * (3 if plan.norm == "l1" else 1)  # each run begins with one of its own, an ℓ1 run with three
        steps = max(4, int((plan.passes - 2 * plan.searches - looks) / (2 * runs)))
        chosen: dict[str, Any] = {
            "norm": ORDER[plan.norm], "max_eps": largest, "binary_search_steps": plan.searches, "n_iter": steps,
            "targeted_version": targeted, "use_large_reps": plan.norm == "l1",
        }  # fmt: skip
        return chosen | ({"num_targets": targets} if targeted else {})

    return settings


ENTRIES = {
    "ddn": Entry("ddn", ("l2",), lambda plan: {"steps": plan.steps, "γ": 0.05, "init_norm": 1.0, "levels": None}),
    "fmn": Entry("fmn", ("l1", "l2"), fmn(1.0)),
    "fmn-10": Entry("fmn", ("linf",), fmn(10.0)),
    "fmn-0.5": Entry("fmn", ("linf",), fmn(0.5)),
    "alma": Entry("alma", ("l1", "l2"), alma),
    "fab": Entry("fab", ALL, fab),
    "fab-t": Entry("fab", ALL, fab_targeted),
    "pdgd": Entry("pdgd", ("l2",), lambda plan: {"num_steps": plan.steps}),
    "pdpgd": Entry("pdpgd", ALL, lambda plan: {"norm": ORDER[plan.norm], "num_steps": plan.steps}),
    "superdeepfool": Entry("sdf", ("l2",), lambda plan: {"steps": 100, "df_steps": 100, "search_iter": 10}),
    "tr": Entry("tr", ("l2", "linf"), trust_region(adaptive=False)),
    "tr-adaptive": Entry("tr", ("l2", "linf"), trust_region(adaptive=True)),
    "apgd": Entry("minimal_apgd", ALL, apgd(targeted=False)),
    "apgd-t": Entry("minimal_apgd", ALL, apgd(targeted=True)),
}

LIBRARY = Library(distribution="adv-lib 0.2.8", load=load, run=run, entries=ENTRIES)
