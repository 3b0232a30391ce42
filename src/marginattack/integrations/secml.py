"""secml-torch 1.5: its own FMN and DDN (its other back ends are Foolbox and adv-lib, which run here by themselves)."""

from importlib import import_module
from typing import Any

from torch import Tensor

from marginattack.integrations.guest import Guest
from marginattack.integrations.peer import Entry, Library, Plan, Settings


def load() -> Any:
    """The module secmlt, with the two attacks' modules imported."""
    for name in ("ddn", "fmn"):
        import_module(f"secmlt.adv.evasion.{name}")
    return import_module("secmlt")


def run(secmlt: Any, call: str, settings: Settings, guest: Guest, plan: Plan) -> Tensor:
    """The attack's points. It keeps distances on the CPU beside labels on the device, so it is run on the CPU."""
    wrapper = import_module("secmlt.models.pytorch.base_pytorch_nn").BasePyTorchClassifier(guest.cpu())
    module = import_module(f"secmlt.adv.evasion.{call.lower()}")
    attack = getattr(module, call)(backend="native", **settings)
    points: Tensor = attack._run(wrapper, guest.images.cpu().clone(), guest.labels.cpu())[0]
    return points


def fmn(step: float) -> Any:
    """FMN from a first step."""
    return lambda plan: {
        "perturbation_model": plan.norm, "num_steps": plan.steps, "step_size": step, "gamma": 0.05,
    }  # fmt: skip


ENTRIES = {
    "ddn": Entry("DDN", ("l2",), lambda plan: {"num_steps": plan.steps, "eps_init": 1.0, "gamma": 0.05}),
    "fmn": Entry("FMN", ("l1", "l2"), fmn(1.0)),
    "fmn-10": Entry("FMN", ("linf",), fmn(10.0)),
    "fmn-0.5": Entry("FMN", ("linf",), fmn(0.5)),
}

LIBRARY = Library(distribution="secml-torch 1.5", load=load, run=run, entries=ENTRIES)
