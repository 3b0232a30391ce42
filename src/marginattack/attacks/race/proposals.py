r"""The gradient-free move of Race, for samples whose gradients mislead.

A proposal adds a window w of one sign (in images a rectangle with a sign per channel) to the best point, as Square
does (Andriushchenko et al. 2020), and returns to a ball around x₀:

.. math:: z = P_{box} \, P_{\|z - x_0\| \le \rho} \left( \hat x + \kappa \rho \, w / \|w\| \right)

The proposal becomes the best point if its c is lower. If it is adversarial, ρ falls and the best point follows it into
the smaller ball, where it is queried first.

Windows and signs come from a low-discrepancy sequence with a random offset per sample, so that a step is a function of
its number and can be captured.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Size, Tensor

from marginattack.attacks.race.moves import TINY, Move
from marginattack.core.problem import Problem
from marginattack.core.types import Points, State

PRIMES = (2, 3, 5, 7, 11, 13)  # their roots are the steps of the sequence: row, column, four signs
UNKNOWN = 1e30  # c of a point that was not queried


@final
@dataclass(frozen=True)
class Proposal(Move):
    """A window of one sign; the plan holds γ, the share of the input that it covers, and the number of the step."""

    size: float = 2.0  # κ
    backwards: ClassVar = 0

    def __call__(self, problem: Problem, numbers: Tensor, *state: Tensor) -> State:
        x, best, ball, sequence = state
        (gamma, share, step), (radius, lowest) = numbers.split(1, dim=1), ball.split(1, dim=1)
        x0, box, norm = problem.x0, problem.box, problem.norm
        c = problem.value(x)
        found = c < 0
        best = torch.where((c < lowest) | found, x, best)
        lowest = torch.where(found, UNKNOWN, torch.minimum(c, lowest))
        radius = torch.where(found, torch.minimum(radius, norm.size(x - x0)) * (1 - gamma), radius)
        nearer = box.clamp(norm.onto_ball(best, x0, radius))
        best = torch.where(found, nearer, best)
        offset, stride = sequence.chunk(2, dim=1)
        w = window((offset + step * stride) % 1.0, share, problem.shape)
        z = best + self.size * radius / norm.size(w).clamp(min=TINY) * w
        z = box.clamp(norm.onto_ball(z, x0, radius))
        return torch.where(found, nearer, z), best, torch.cat([radius, lowest], dim=1), sequence

    def begin(self, problem: Problem, x: Points) -> State:
        size = problem.norm.size(x - problem.x0)
        offset = problem.draws.uniform(len(PRIMES))
        stride = offset.new_tensor([math.sqrt(prime) % 1 for prime in PRIMES]).expand_as(offset)
        ball = torch.cat([size, torch.full_like(size, UNKNOWN)], dim=1)
        return x, x.clone(), ball, torch.cat([offset, stride], dim=1)


def window(random: Tensor, share: Tensor, shape: Size) -> Points:
    """±1 in a window that covers this share of an input, 0 elsewhere; an input without rows and columns is one row."""
    channels, height, width = (*([1] * (3 - len(shape))), *shape) if len(shape) <= 3 else (1, 1, math.prod(shape))
    rows = (share.sqrt() * height).round().clamp(1, height)
    columns = (share * height * width / rows).round().clamp(1, width)
    inside = []
    for side, extent, where in ((height, rows, random[:, :1]), (width, columns, random[:, 1:2])):
        first = (where * (side - extent + 1)).floor()
        numbers = torch.arange(side, dtype=random.dtype, device=random.device)
        inside.append((numbers >= first) & (numbers < first + extent))
    signs = torch.where(random[:, 2:] < 0.5, -1.0, 1.0).to(random)
    signs = signs.repeat(1, -(-channels // signs.shape[1]))[:, :channels]
    mask = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    w: Points = (mask * signs[:, :, None, None]).flatten(1)
    return w
