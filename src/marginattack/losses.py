"""What an attack may descend: functions of the logits and one class a sample, larger the surer the model is of it.

An untargeted attack lowers the belief in the true class, a targeted one raises that in the target; ``Problem`` puts
in the sign, so that every attack descends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from marginattack.shapes import Labels, Logits

Belief: TypeAlias = Callable[[Logits, Labels], Tensor]


def margin(logits: Logits, label: Labels) -> Tensor:
    """l_y − max_{i≠y} l_i: positive exactly where y is predicted. The paper's c without its offset."""
    return _own(logits, label) - _others(logits, label).amax(1)


def rival(rank: int) -> Belief:
    """l_y − the logit of the other class of that rank, 0 the highest: the paper's c_i for a target scan."""

    def lead(logits: Logits, label: Labels) -> Tensor:
        return _own(logits, label) - _others(logits, label).topk(rank + 1, dim=1).values[:, rank]

    return lead


def log_probability(logits: Logits, label: Labels) -> Tensor:
    """The log of p_y: the cross-entropy with its sign turned."""
    return -torch.nn.functional.cross_entropy(logits, label, reduction="none")


@final
@dataclass(frozen=True)
class CrossEntropy:
    """``log_probability`` as a value that prints its name, for the settings of an attack."""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return log_probability(logits, label)


@final
@dataclass(frozen=True)
class LogitDifference:
    """``margin`` as a value that prints its name, for the settings of an attack."""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return margin(logits, label)


@final
@dataclass(frozen=True)
class Hinge:
    """max(l_y − max_{i≠y} l_i, −κ): the loss of Carlini and Wagner, flat once y trails by the confidence κ.

    κ = 50 is that of Madry's challenge code. Towards a class the sign turns, so there it is flat once it leads by κ.
    """

    confidence: float = 50.0

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return margin(logits, label).clamp(-self.confidence, self.confidence)


@final
@dataclass(frozen=True)
class Against:
    """l_y − l_t for one class t, held fixed: the one ``shift`` places after y in the ring of classes."""

    shift: int

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return _own(logits, label) - _own(logits, (label + self.shift) % logits.shape[1])


@final
@dataclass(frozen=True)
class ShiftOf:
    """Not a belief but the ``shift`` of the other class of that rank, 0 the highest: which ``Against`` it is."""

    rank: int

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        rival = _others(logits, label).topk(self.rank + 1, dim=1).indices[:, self.rank]
        return ((rival - label) % logits.shape[1]).to(logits.dtype)


CROSS_ENTROPY, LOGIT_DIFFERENCE = CrossEntropy(), LogitDifference()


def _own(logits: Logits, label: Labels) -> Tensor:
    return logits.gather(1, label[:, None])[:, 0]


def _others(logits: Logits, label: Labels) -> Logits:
    """The logits with that of the label out of play."""
    return logits.scatter(1, label[:, None], -torch.inf)
