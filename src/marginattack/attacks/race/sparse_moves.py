r"""The moves of Race where the number of changed coordinates counts (ℓ0).

``TopCorners`` linearises: among all points that differ from x₀ in k coordinates, the one with the smallest
:math:`\bar g^\top x` has the k coordinates of the largest :math:`|\bar g_i| |z_i - x_{0,i}|` at their bounds z. k falls
while x is adversarial and rises while it is not.

``SmoothedCount`` is the step of σ-zero (Cinà et al. 2025): a step of Adam on c while x is not adversarial, else on

.. math:: \sum_i \delta_i^2 / (\delta_i^2 + \sigma), \quad \delta = (x - x_0) / (hi - lo),

after which every :math:`|\delta_i|` below a threshold is set to zero. The threshold rises while x is adversarial.

``Pruning`` removes coordinates from the sparsest adversarial point.

The state of all three is the point x, two points side by side, and three numbers per sample.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from marginattack.attacks.race.moves import TINY, GradientMove
from marginattack.core.norms import LINF
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars, State


@final
@dataclass(frozen=True)
class TopCorners(GradientMove):
    """The k coordinates with the largest linear gain at their bounds; the plan holds γ and the weight of memory.

    k begins at the number of coordinates of x, or at x₀ at that of the tangent plane; until something was found it
    grows by ``growth``.
    """

    growth: float

    def begin(self, problem: Problem, x: Points) -> State:
        zero = torch.zeros_like(x)
        number = problem.norm.size(x - problem.x0)
        return x, torch.cat([zero, zero], 1), torch.cat([number, torch.zeros_like(number), torch.zeros_like(number)], 1)

    def move(self, problem: Problem, numbers: Tensor, c: Tensor, g: Tensor, *state: Tensor) -> State:
        (gamma, memory, _), (x, v, ball) = numbers.split(1, dim=1), state
        k, found, unused = ball.split(1, dim=1)
        x0, box, norm = problem.x0, problem.box, problem.norm
        size = norm.size(x - x0)
        k = torch.where(k > 0, k, norm.size(norm.onto_plane(x0, g, c, box) - x0))
        found = torch.maximum(found, (c < 0).to(found))
        fewer = torch.minimum(torch.minimum(k, size) * (1 - gamma), size - 1)
        more = k * (1 + torch.where(found > 0, gamma, gamma.clamp(min=self.growth)))
        k = torch.where(c < 0, fewer, more).clamp(min=1, max=x.shape[1])
        v = memory * v[:, : x.shape[1]] + (1 - memory) * g / norm.dual(g).clamp(min=TINY)
        z = torch.where(v > 0, box.lo, box.hi)
        chosen = _rank(-v.abs() * (z - x0).abs()) < k.round()
        return torch.where(chosen, z, x0), torch.cat([v, v], 1), torch.cat([k, found, unused], 1)


@final
@dataclass(frozen=True)
class SmoothedCount(GradientMove):
    """σ-zero's step; the plan holds η and the change of the threshold. Lengths are shares of the box.

    σ is a hundred times that of its authors, and the squares of gradients are forgotten ten times as fast: better where
    gradients mislead, and with few steps.
    """

    sigma: float = 0.1
    threshold: float = 0.3
    momentum: float = 0.9
    decay: float = 0.99

    def begin(self, problem: Problem, x: Points) -> State:
        zero = torch.zeros_like(x[:, :1])
        moments = torch.zeros_like(x).repeat(1, 2)
        return x, moments, torch.cat([zero + self.threshold, zero, zero], 1)

    def move(self, problem: Problem, numbers: Tensor, c: Tensor, g: Tensor, *state: Tensor) -> State:
        (eta, change, _), (x, moments, ball) = numbers.split(1, dim=1), state
        threshold, step, unused = ball.split(1, dim=1)
        x0, box, width = problem.x0, problem.box, problem.box.width
        delta = torch.where(width > 0, (x - x0) / width, 0)
        g = torch.where(c < 0, delta * (delta.square() + self.sigma) ** -2, g * width)
        g = g / LINF.size(g).clamp(min=TINY)
        first, second = moments.chunk(2, dim=1)
        step = step + 1
        first = torch.lerp(g, first, self.momentum)
        second = torch.lerp(g.square(), second, self.decay)
        scale = (second / (1 - self.decay**step)).sqrt() + 1e-8
        x = box.clamp(x - eta * width * first / (1 - self.momentum**step) / scale)
        threshold = (threshold + torch.where(c < 0, change, -change)).clamp(0, 1)
        x = torch.where((x - x0).abs() < threshold * width, x0, x)
        return x, torch.cat([first, second], 1), torch.cat([threshold, step, unused], 1)


@final
@dataclass(frozen=True)
class Pruning(GradientMove):
    """Remove coordinates from the sparsest adversarial point b; the plan says whether to swap, and if it begins.

    First many at a time: ``share`` of them, half as many after each failure. Then one by one, in the order of what
    removal costs to first order; or, in a swap, two for a new one, the others moved to their better bounds.
    """

    share: float = 0.25

    def begin(self, problem: Problem, x: Points) -> State:
        zero = torch.zeros_like(x[:, :1])
        many = (self.share * problem.norm.size(x - problem.x0)).clamp(min=1)
        return x, torch.cat([x, x], 1), torch.cat([zero, zero, many], 1)

    def move(self, problem: Problem, numbers: Tensor, c: Tensor, g: Tensor, *state: Tensor) -> State:
        (swap, begins, _), (x, b, ball) = numbers.split(1, dim=1), state
        ones, pairs, many = ball.split(1, dim=1)
        x0, box = problem.x0, problem.box
        fewer = torch.where(many > 1, many / 2, 0)
        many = torch.where((c < 0) | (begins > 0), many, fewer)
        b = torch.where(c < 0, x, b[:, : x.shape[1]])
        ones, pairs = torch.where(c < 0, 0, ones), torch.where(c < 0, 0, pairs)
        changed = b != x0
        number = changed.sum(1, keepdim=True).clamp(min=1)
        rank = _rank(torch.where(changed, g * (x0 - b), torch.inf))  # c rises by about this
        in_bulk, swaps = many >= 1, (swap > 0) & (number > 1) & (many < 1)
        removed = torch.where(in_bulk, rank < many.floor().minimum(number - 1), rank == ones % number)
        after = torch.where(swaps, self._swap(problem, g, b, changed, rank, pairs), torch.where(removed, x0, b))
        ones, pairs = torch.where(swaps | in_bulk, ones, ones + 1), torch.where(swaps, pairs + 1, pairs)
        return box.clamp(after), torch.cat([b, b], 1), torch.cat([ones, pairs, many], 1)

    def _swap(self, problem: Problem, g: Points, b: Points, changed: Tensor, rank: Tensor, pairs: Scalars) -> Points:
        """Two coordinates fewer and the best new one more; ``pairs`` counts through the pairs, the cheapest first."""
        x0, box = problem.x0, problem.box
        number = changed.sum(1, keepdim=True).clamp(min=1)
        z = torch.where(g > 0, box.lo, box.hi)
        gain = torch.where(changed, -torch.inf, g * (x0 - z))
        first = pairs % number
        second = (first + 1 + torch.div(pairs, number, rounding_mode="floor")) % number
        kept = torch.where(changed | (gain == gain.amax(1, keepdim=True)), z, b)
        return torch.where((rank == first) | (rank == second), x0, kept)


def _rank(key: Points) -> Tensor:
    """The position of each entry in the ascending order of its row."""
    order = key.argsort(1)
    places = torch.arange(key.shape[1], device=key.device).expand_as(order)
    return torch.zeros_like(order).scatter(1, order, places)
