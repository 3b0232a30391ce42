"""Adversarial images that survive rounding to 8 bits: the nearest found on the grid k/255, with their own distance.

From the attack's point, candidates further and further past the boundary are rounded, to the nearest grid value or away
from the input. The nearest adversarial candidate is kept; then the segment to the first of them is bisected.
Candidates for which the model returns NaN or infinity are skipped.
"""

import torch
from torch import Tensor

from marginattack.core.norms import Norm
from marginattack.core.validation import Batch
from marginattack.execution.passes import logits_in_batches
from marginattack.execution.session import Session

OVERSHOOTS = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)  # in units of the distance
BISECTIONS = 6


def search_lattice(
    session: Session, batch: Batch, adversarial: Tensor, norm: Norm, levels: int = 255
) -> tuple[Tensor, Tensor]:
    """For each image an adversarial grid point and its distance; x rounded and infinity if none is found.

    The point can be nearer than the attack's, which did not search the grid.
    """
    results = [
        _search(session, batch.select(rows), adversarial[rows], norm, levels)
        for rows in torch.arange(len(batch)).split(session.batch_size)
    ]
    points, distances = zip(*results, strict=True)
    return torch.cat(points), torch.cat(distances)


def _search(session: Session, batch: Batch, adversarial: Tensor, norm: Norm, levels: int) -> tuple[Tensor, Tensor]:
    problem = session.problem(batch, norm)
    start = adversarial.flatten(1).to(problem.x0.device)
    length = norm.size(start - problem.x0).clamp(min=0.5 / levels)
    best = torch.round(problem.x0 * levels)
    distance = torch.full_like(length, torch.inf, dtype=torch.float64)

    def offer(grid: Tensor) -> Tensor:
        """Keep the points that are adversarial and nearer than the best; return which are adversarial."""
        nonlocal best, distance
        point = grid.clamp(0, levels)
        with torch.no_grad():
            logits = logits_in_batches(session.evaluator(), (point / levels).unflatten(1, problem.shape))
        reached = batch.reached(logits.argmax(1)) & torch.isfinite(logits).all(1)
        crossed = reached[:, None].to(point.device)
        size = norm.size(((point / levels).to(problem.x0) - problem.x0).double())
        nearer = crossed & (size < distance)
        best, distance = torch.where(nearer, point, best), torch.where(nearer, size, distance)
        return crossed

    x_k, inner, waiting = start, start, torch.ones_like(length, dtype=torch.bool)
    for overshoot in OVERSHOOTS:
        outward = torch.where(x_k > problem.x0, torch.ceil(x_k * levels - 1e-3), torch.floor(x_k * levels + 1e-3))
        crossed = offer(torch.round(x_k * levels)) | offer(outward)
        inner = torch.where(waiting, x_k, inner)
        waiting = waiting & ~crossed
        c, g = problem.value_and_gradient(x_k)
        x_k = norm.onto_plane(x_k, g, c + overshoot * length * norm.dual(g), problem.box)
    low, high = torch.zeros_like(length), torch.ones_like(length)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        crossed = offer(torch.round((start + middle * (inner - start)) * levels))
        low, high = torch.where(crossed, low, middle), torch.where(crossed, middle, high)
    return best.unflatten(1, problem.shape).to(torch.uint8).cpu(), distance[:, 0].cpu()
