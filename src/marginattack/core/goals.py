"""Aims: a row a sample, a class, and 1 to leave it, -1 to reach it, 0 to wait."""

import torch
from torch import Tensor

from marginattack.core.types import Labels


def away(labels: Labels) -> Tensor:
    """An aim: to leave these classes."""
    return torch.stack([labels, torch.ones_like(labels)], dim=1)


def towards(labels: Labels) -> Tensor:
    """An aim: to reach these classes."""
    return torch.stack([labels, torch.full_like(labels, -1)], dim=1)
