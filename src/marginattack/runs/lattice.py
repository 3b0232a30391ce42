"""Adversarial images that survive 8 bits: the nearest found on the grid k/255, with a distance of their own.

From the attack's point, restorations ever further past the boundary are rounded, to the nearest grid value or away from
the input. Of all that stay adversarial the nearest is kept; then the way to the first that held is bisected.
"""

import torch
from torch import Tensor

from marginattack.core.classifier import Classifier
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Labels

HOPS = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)  # in units of the distance
HALVINGS = 6


def on_lattice(
    classifier: Classifier, x: Tensor, adversarial: Tensor, y: Labels, a: Labels | None, norm: Norm, levels: int = 255
) -> tuple[Tensor, Tensor]:
    """For each image an adversarial point of the grid, and its distance; where none is, x rounded and infinity.

    It may be nearer than the attack's point, which was not looked for on the grid.
    """
    if len(x) > classifier.chunk:
        chunks = [slice(first, first + classifier.chunk) for first in range(0, len(x), classifier.chunk)]
        parts = [
            on_lattice(classifier, x[k], adversarial[k], y[k], a if a is None else a[k], norm, levels) for k in chunks
        ]
        return torch.cat([points for points, _ in parts]), torch.cat([distance for _, distance in parts])
    problem = Problem(classifier, x, y, norm, targets=a)
    start = adversarial.flatten(1).to(classifier.device)
    length = norm.size(start - problem.x0).clamp(min=0.5 / levels)
    best = torch.round(problem.x0 * levels)
    distance = torch.full_like(length, torch.inf, dtype=torch.float64)

    def hold(grid: Tensor) -> Tensor:
        nonlocal best, distance
        point = grid.clamp(0, levels)
        label = classifier.predict((point / levels).unflatten(1, problem.shape)).to(point.device)
        holds = (label != y.to(label.device)) if a is None else (label == a.to(label.device))
        size = norm.size(((point / levels).to(problem.x0) - problem.x0).double())
        nearer = holds[:, None] & (size < distance)
        best, distance = torch.where(nearer, point, best), torch.where(nearer, size, distance)
        return holds[:, None]

    x_k, inner, waiting = start, start, torch.ones_like(length, dtype=torch.bool)
    for share in HOPS:
        outward = torch.where(x_k > problem.x0, torch.ceil(x_k * levels - 1e-3), torch.floor(x_k * levels + 1e-3))
        holds = hold(torch.round(x_k * levels)) | hold(outward)
        inner = torch.where(waiting, x_k, inner)
        waiting = waiting & ~holds
        c, g = problem.c(x_k)
        x_k = norm.onto_plane(x_k, g, c + share * length * norm.dual(g), problem.lo, problem.hi)
    low, high = torch.zeros_like(length), torch.ones_like(length)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = hold(torch.round((start + middle * (inner - start)) * levels))
        low, high = torch.where(holds, low, middle), torch.where(holds, middle, high)
    return best.unflatten(1, problem.shape).to(torch.uint8).cpu(), distance[:, 0].cpu()
