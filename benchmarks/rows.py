"""One row of a comparison: our attack and a public one, the same settings, the same inputs."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Bench:
    """What both sides are run on: a model in eval mode and inputs that it classifies rightly, on the model's device."""

    model: nn.Module
    images: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Row:
    """``ours`` and ``theirs`` return the distance of each sample's adversarial input, infinity where none was found."""

    attack: str
    norm: str
    settings: str
    peer: str
    ours: Callable[[Bench], Tensor]
    theirs: Callable[[Bench], Tensor]
    fixed: bool = False  # a fixed-ε attack, compared by its success rate instead of its median distance
    digits: int = 200
    note: str = ""
