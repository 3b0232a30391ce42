"""Goals: one row per sample, a class and a direction: 1 to leave the class, -1 to reach it, 0 to wait."""

import torch

from marginattack.core.types import Goals, Labels


def leave(labels: Labels) -> Goals:
    """Untargeted: any other class than these."""
    return torch.stack([labels, torch.ones_like(labels)], dim=1)


def reach(labels: Labels) -> Goals:
    """Targeted: these classes."""
    return torch.stack([labels, torch.full_like(labels, -1)], dim=1)
