"""secml-torch 1.5: its own FMN and DDN (its other back ends, Foolbox and adv-lib, are integrated directly)."""

from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack, ProblemInfo, fmn_variants
from marginattack.attacks.external.problem_module import ProblemModule


def run(function: str, settings: dict[str, Any], model: ProblemModule) -> Tensor:
    """Call the attack and return its points; on the CPU, since it mixes distances there with labels on the device."""
    wrapper = import_module("secmlt.models.pytorch.base_pytorch_nn").BasePyTorchClassifier(model.cpu())
    attack = getattr(import_module(f"secmlt.adv.evasion.{function.lower()}"), function)(backend="native", **settings)
    points: Tensor = attack._run(wrapper, model.images.cpu().clone(), model.labels.cpu())[0]
    return points


def fmn(info: ProblemInfo, step: float) -> dict[str, Any]:
    """FMN with a first step."""
    return {"perturbation_model": info.norm, "num_steps": info.steps, "step_size": step, "gamma": 0.05}


attack = partial(
    ExternalAttack, distribution="secml-torch 1.5", load=partial(import_module, "secmlt.adv.evasion.fmn"), run=run
)
ATTACKS = (
    attack("secml:ddn", "DDN", ("l2",), lambda i: {"num_steps": i.steps, "eps_init": 1.0, "gamma": 0.05}),
    *fmn_variants(attack, "secml", "FMN", fmn),
)
