"""A comparison of one of our attacks with a public implementation: the same settings, the same inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.attack import Attack
from marginattack.core.norms import as_norm


@dataclass(frozen=True)
class Inputs:
    """A model in eval mode and inputs that it classifies correctly, on the model's device."""

    model: nn.Module
    images: Tensor
    labels: Tensor


Run = Callable[[Inputs], Tensor]  # the distance of each sample's adversarial point, infinity where none was found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Our attack, and the public implementation ``peer``."""

    attack: str
    norm: str
    settings: str
    peer: str
    ours: Run
    theirs: Run
    fixed: bool = False  # a fixed-radius attack, compared by its success rate instead of its median distance
    digits: int = 200
    note: str = ""
    network: str = "mnist-cnn"  # of the zoo


def run_ours(attack: Attack, norm: str, targets: Run | None = None) -> Run:
    """Distances by measure()."""
    return lambda inputs: ma.measure(
        inputs.model, inputs.images, inputs.labels, norm, attack=attack, batch=len(inputs.images),
        targets=None if targets is None else targets(inputs),
    ).distance  # fmt: skip


def run_foolbox(name: str, norm: str, radii: Sequence[float | None] = (None,), **settings: Any) -> Run:
    """Distances by a Foolbox attack, all inputs in one batch; with ``radii``, of the nearest success over these."""

    def run(inputs: Inputs) -> Tensor:
        foolbox = import_module("foolbox")
        model = foolbox.PyTorchModel(inputs.model, bounds=(0, 1), device=inputs.images.device)
        attack = getattr(foolbox.attacks, name)(**settings)
        points, success = attack(model, inputs.images, inputs.labels, epsilons=list(radii))[1:]
        sizes = [as_norm(norm).size((p.double() - inputs.images.double()).flatten(1))[:, 0] for p in points]
        return torch.where(success, torch.stack(sizes), torch.inf).amin(0).cpu()

    return run


def run_advlib(name: str, norm: str, **settings: Any) -> Run:
    """Distances by an attack of adv-lib, all inputs in one batch."""

    def run(inputs: Inputs) -> Tensor:
        from marginattack.attacks.external.advlib import load

        points: Tensor = getattr(load(), name)(inputs.model, inputs.images, inputs.labels, **settings)
        size = as_norm(norm).size((points.double() - inputs.images.double()).flatten(1))[:, 0]
        with torch.no_grad():
            fooled = inputs.model(points).argmax(1) != inputs.labels
        return torch.where(fooled, size, torch.inf).cpu()

    return run
