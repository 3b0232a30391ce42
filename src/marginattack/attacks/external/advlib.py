"""adv-lib 0.2.8 (Rony): its attacks with AttackBench's settings, the number of steps set by the budget."""

import sys
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack, ProblemInfo, fmn_variants
from marginattack.attacks.external.problem_module import ProblemModule

ALL = ("l1", "l2", "linf")


def load() -> Any:
    """Import adv_lib.attacks; stubs replace visdom and LPIPS, which it imports but no attack on ℓp norms uses."""
    import_module("adv_lib")
    for name, attribute in (("visdom", "Visdom"), ("adv_lib.distances.lpips", "LPIPS")):
        try:
            import_module(name)
        except (ImportError, RuntimeError):  # RuntimeError: torchvision, which LPIPS needs, without its C++ operators
            stub = ModuleType(name)
            stub.__spec__ = ModuleSpec(name, None)  # importlib.util.find_spec needs one
            setattr(stub, attribute, None)
            sys.modules[name] = stub
    module: Any = import_module("adv_lib.attacks.fast_minimum_norm")
    if not isinstance(module.l0_projection_, partial):
        module.l0_projection_ = partial(_project_l0, module.l0_projection_)
    return import_module("adv_lib.attacks")


def _project_l0(project: Any, δ: Tensor, ε: Tensor) -> Tensor:
    """Its projection, which fails where every ε is below 1; it treats an ε below 1 among larger ones as 1."""
    projected: Tensor = project(δ=δ, ε=ε.clamp(min=1))
    return projected


def run(function: str, settings: dict[str, Any], model: ProblemModule) -> Tensor:
    """Call the attack and return its points."""
    # adv_lib.attacks does not export minimal_apgd
    module = import_module("adv_lib.attacks.auto_pgd") if function == "minimal_apgd" else load()
    points: Tensor = getattr(module, function)(model, model.images.clone(), model.labels, **settings)
    return points


def alma(info: ProblemInfo) -> dict[str, Any]:
    """The authors average less over 100 steps than over 1,000: α = 0.5 and 0.9."""
    rate, average = {"l1": 0.5, "l2": 0.1}[info.norm], 0.5 if info.steps <= 100 else 0.9
    return {"distance": info.norm, "num_steps": info.steps, "init_lr_distance": rate, "α": average}


def fab(info: ProblemInfo) -> dict[str, Any]:
    """Each step costs two forwards, and a backward per class."""
    return {"norm": info.p, "n_iter": max(1, (info.budget - 1) // (info.classes + 1))}


def fab_targeted(info: ProblemInfo) -> dict[str, Any]:
    """Towards the likeliest classes in turn, three passes per step: one class per hundred passes, at most nine."""
    targets = max(1, min(9, info.classes - 1, info.budget // 100))
    steps = max(1, ((info.budget - 1) // targets - 1) // 3)
    return {"norm": info.p, "n_iter": steps, "restarts": targets, "targeted_restarts": True}


def trust_region(info: ProblemInfo, *, adaptive: bool) -> dict[str, Any]:
    """Ten backwards to choose the class, then three passes per step, four with an adaptive radius."""
    steps = max(1, (info.budget - 2 - min(9, info.classes - 1)) // (4 if adaptive else 3))
    return {"p": info.p, "iter": steps, "adaptive": adaptive, "eps": 0.001, "c": 9}


def apgd(info: ProblemInfo, *, targeted: bool) -> dict[str, Any]:
    """Bisection of the radius below twice ``max_eps``; AttackBench's loss, and its three-stage radius for ℓ1.

    Without a radius, ``max_eps`` is AttackBench's, which suits undefended networks.
    """
    largest = info.eps or {"l1": 30.0, "l2": 2.0, "linf": 0.25 if info.grayscale else 16 / 255}[info.norm]
    targets = max(1, min(5, info.classes - 1, round(info.budget / 250))) if targeted else 1
    bisections = max(2, int(info.budget**0.36))  # 5, 8 and 15 for 100, 400 and 2,000 passes
    runs = bisections * (1 + targets) / 2  # half of the radii are too large: their first class succeeds
    initial = 2 * runs * (3 if info.norm == "l1" else 1)  # passes before the first step; ℓ1 has three stages
    steps = max(4, int((info.budget - 2 * bisections - initial) / (2 * runs)))
    settings: dict[str, Any] = {
        "norm": info.p, "max_eps": largest, "binary_search_steps": bisections, "n_iter": steps,
        "targeted_version": targeted, "use_large_reps": info.norm == "l1",
    }  # fmt: skip
    return settings | ({"num_targets": targets} if targeted else {})


attack = partial(ExternalAttack, distribution="adv-lib 0.2.8", load=load, run=run)
ATTACKS = (
    attack("advlib:ddn", "ddn", ("l2",), lambda i: {"steps": i.steps, "γ": 0.05, "init_norm": 1.0, "levels": None}),
    *fmn_variants(
        attack, "advlib", "fmn", lambda i, step: {"norm": i.p, "steps": i.steps, "α_init": step, "γ_init": 0.05}
    ),
    attack("advlib:alma", "alma", ("l1", "l2"), alma),
    attack("advlib:fab", "fab", ALL, fab),
    attack("advlib:fab-t", "fab", ALL, fab_targeted),
    attack("advlib:pdgd", "pdgd", ("l2",), lambda i: {"num_steps": i.steps}),
    attack("advlib:fmn-l0", "fmn", ("l0",), lambda i: {"norm": 0, "steps": i.steps, "α_init": 1.0, "γ_init": 0.05}),
    attack("advlib:sigma-zero", "sigma_zero", ("l0",), lambda i: {"num_steps": i.steps}),
    attack("advlib:pdpgd", "pdpgd", ("l0", *ALL), lambda i: {"norm": i.p, "num_steps": i.steps}),
    attack("advlib:superdeepfool", "sdf", ("l2",), lambda i: {"steps": 100, "df_steps": 100, "search_iter": 10}),
    attack("advlib:tr", "tr", ("l2", "linf"), partial(trust_region, adaptive=False)),
    attack("advlib:tr-adaptive", "tr", ("l2", "linf"), partial(trust_region, adaptive=True)),
    attack("advlib:apgd", "minimal_apgd", ALL, partial(apgd, targeted=False)),
    attack("advlib:apgd-t", "minimal_apgd", ALL, partial(apgd, targeted=True)),
)
