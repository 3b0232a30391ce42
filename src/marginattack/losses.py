"""What an attack may descend: functions of the logits and one class a sample, larger the surer the model is of it.

An untargeted attack lowers the belief in the true class, a targeted one raises that in the target; ``Problem`` puts
in the sign, so that every attack descends.
"""

from collections.abc import Callable
from typing import TypeAlias

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
    """log p_y: the cross-entropy with its sign turned."""
    return -torch.nn.functional.cross_entropy(logits, label, reduction="none")


def _own(logits: Logits, label: Labels) -> Tensor:
    return logits.gather(1, label[:, None])[:, 0]


def _others(logits: Logits, label: Labels) -> Logits:
    """The logits with that of the label out of play."""
    return logits.scatter(1, label[:, None], -torch.inf)
