"""Adversarial images that survive 8 bits: the nearest found on the grid k/255, with a distance of their own.

The attack's point is pushed away from the input by growing factors and rounded, to the nearest grid value or outwards;
of all that stay adversarial the nearest is kept, then the factor is bisected down.
"""

import torch
from torch import Tensor

from marginattack.classifier import Classifier
from marginattack.norms import Norm
from marginattack.shapes import Labels, Mask

FACTORS = (1.0, 1.03, 1.07, 1.15, 1.3, 1.6, 2.0, 3.0, 5.0)
HALVINGS = 6


@torch.no_grad()
def on_lattice(
    classifier: Classifier, x: Tensor, adversarial: Tensor, y: Labels, a: Labels | None, norm: Norm, levels: int = 255
) -> tuple[Tensor, Tensor]:
    """For each image an adversarial point of the grid, and its distance; where none is, x rounded and infinity."""
    push = adversarial - x
    best = rounded = torch.round(x * levels)
    distance = torch.full((len(x),), torch.inf, dtype=torch.float64)
    first = torch.full((len(x),), torch.inf, dtype=torch.float64)  # the factor from which rounding alone holds

    def tried(factor: Tensor, grid: Tensor) -> Mask:
        nonlocal best, distance
        point = grid.clamp(0, levels)
        holds = _reached(classifier.predict(point / levels), y, a)
        size = norm.size((point.double() / levels - x.double()).flatten(1))[:, 0]
        nearer = holds & (size < distance)
        best = torch.where(_wide(nearer, x), point, best)
        distance = torch.where(nearer, size, distance)
        return holds

    for value in FACTORS:
        factor = torch.full_like(first, value)
        moved = (x + value * push) * levels
        holds = tried(factor, torch.round(moved))
        first = torch.where(holds, torch.minimum(first, factor), first)
        tried(factor, torch.where(push > 0, torch.ceil(moved - 1e-3), torch.floor(moved + 1e-3)))
    low, high = torch.zeros_like(first), torch.where(torch.isinf(first), 1.0, first)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = tried(middle, torch.round((x + _wide(middle, x).to(x.dtype) * push) * levels))
        low, high = torch.where(holds, low, middle), torch.where(holds, middle, high)
    best = torch.where(_wide(torch.isinf(distance), x), rounded, best)
    return best.to(torch.uint8), distance


def _reached(label: Labels, y: Labels, a: Labels | None) -> Mask:
    return label != y if a is None else label == a


def _wide(values: Tensor, x: Tensor) -> Tensor:
    """One value an image, to go with its pixels."""
    return values.view(-1, *[1] * (x.ndim - 1))
