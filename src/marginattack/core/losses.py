"""Losses: functions of the logits and one class per sample that grow with the model's confidence in that class.

An untargeted attack lowers the loss of the true class, a targeted one raises that of the target; ``Problem`` applies
the sign, so that every attack descends. Losses are values, so that the settings of an attack print their names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from marginattack.core.types import Labels, Logits

Loss: TypeAlias = Callable[[Logits, Labels], Tensor]


@final
@dataclass(frozen=True)
class Margin:
    """l_y − max_{i≠y} l_i: positive if and only if y is predicted. The paper's c without its offset."""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return _own(logits, label) - others(logits, label).amax(1)


@final
@dataclass(frozen=True)
class RankedMargin:
    """l_y − the logit of that rank among the ``number`` highest others: the paper's c_i for a target scan."""

    rank: int
    number: int

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        # All ranks use the topk of the same number, so that ties are broken consistently.
        return _own(logits, label) - others(logits, label).topk(self.number, dim=1).values[:, self.rank]


@final
@dataclass(frozen=True)
class CrossEntropy:
    """log p_y: the negative cross-entropy."""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return -torch.nn.functional.cross_entropy(logits, label, reduction="none")


@final
@dataclass(frozen=True)
class LogOdds:
    """log p_y / (1 − p_y): grows with p_y, but does not saturate if the model is confident."""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return _own(logits, label) - others(logits, label).logsumexp(1)


@final
@dataclass(frozen=True)
class Hinge:
    """max(l_y − max_{i≠y} l_i, −κ): the loss of Carlini and Wagner, flat once y trails by κ.

    κ = 50 is that of Madry's challenge code. For ``targeted`` problems, where y is raised: flat once it leads by κ.
    """

    confidence: float = 50.0
    targeted: bool = False

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        margin = MARGIN(logits, label)
        return margin.clamp(max=self.confidence) if self.targeted else margin.clamp(min=-self.confidence)


@final
@dataclass(frozen=True)
class Own:
    """l_y"""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return _own(logits, label)


@final
@dataclass(frozen=True)
class AgainstRest:
    """Minus the sum of the other logits."""

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        return _own(logits, label) - logits.sum(1)


@final
@dataclass(frozen=True)
class LogitRatio:
    """(l_y − max_{i≠y} l_i) / (l_(1) − l_(3)), l_(k) the k-th highest: DLR (Croce, Hein 2020), invariant to scale.

    With ``ranks`` (3, 4), for targets, the mean of l_(3) and l_(4) is subtracted: the target may be the third itself.
    """

    ranks: tuple[int, ...] = (3,)

    def __call__(self, logits: Logits, label: Labels) -> Tensor:
        highest = logits.topk(max(self.ranks), dim=1).values
        lower = highest[:, [rank - 1 for rank in self.ranks]].mean(1)
        return MARGIN(logits, label) / (highest[:, 0] - lower + 1e-12)


MARGIN, CROSS_ENTROPY, LOG_ODDS = Margin(), CrossEntropy(), LogOdds()
DLR, TARGETED_DLR = LogitRatio(), LogitRatio((3, 4))
OWN, AGAINST_REST = Own(), AgainstRest()


def compare(logits: Logits, label: Labels) -> tuple[Tensor, Tensor]:
    """The logit of the label, and the largest of the others."""
    return _own(logits, label), others(logits, label).amax(1)


def scale(logits: Logits, own: Tensor, other: Tensor) -> Tensor:
    """The size of logits that rounding is relative to: the largest, unless a class is masked by a huge logit."""
    return torch.minimum(logits.abs().amax(1), 100 * (own.abs() + other.abs()))


def others(logits: Logits, label: Labels) -> Logits:
    """The logits with that of the label set to −∞."""
    return logits.scatter(1, label[:, None], -torch.inf)


def _own(logits: Logits, label: Labels) -> Tensor:
    return logits.gather(1, label[:, None])[:, 0]
