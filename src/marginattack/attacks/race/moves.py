r"""The equations of Race.

A descent moves in a ball around x₀ that shrinks while x is adversarial and grows while it is not:

.. math::
    x^+ = P_{box} \, P_{\|x - x_0\| \le \rho} \left( x - \eta \rho \, s(v) \right), \quad
    \rho^+ = (1 \mp \gamma) \rho, \quad v_i = \operatorname{sign}(g_i) |g_i|^a, \; g = \nabla c(x)

A slide is both moves of MarginAttack from one gradient, r the exact restoration in the box (paper Eqs. 3, 13), p the
point of the same tangent plane that is nearest to x₀:

.. math:: x^+ = r + \beta (p - r)

The state of both is the point x, the running mean v of gradients, and a ball with three numbers per sample: its
radius ρ, whether an adversarial point was found, and the radius that contains the box.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from marginattack.core.box import Box
from marginattack.core.fusion import fusible
from marginattack.core.norms import L2, LINF, Norm
from marginattack.core.problem import Problem, Step
from marginattack.core.types import Points, Scalars, State

TINY = 1e-30
INSIDE = 0.9999  # of a distance that is enough: a ball whose points are within it in spite of rounding


class Move(Step):
    """A step from one query at x, the first tensor of its state."""

    queries: ClassVar = 1

    @abstractmethod
    def begin(self, problem: Problem, x: Points) -> State:
        """The state of samples that start at x."""

    def aimed(self, problem: Problem) -> "Move":
        """The move for a problem in which some distance is enough: itself, unless it can make use of that."""
        return self


class GradientMove(Move):
    """A move from c and ∇c at x: samples that make different ones can share a query."""

    def __call__(self, problem: Problem, numbers: Tensor, *state: Tensor) -> State:
        return self.move(problem, numbers, *problem.value_and_gradient(state[0]), *state)

    @abstractmethod
    def move(self, problem: Problem, numbers: Tensor, c: Tensor, g: Tensor, *state: Tensor) -> State:
        """The next state, given c and g at x."""


@final
@dataclass(frozen=True)
class Descent(GradientMove):
    """A descent in balls of ``norm``; the plan holds η, γ and a.

    ``memory`` is the weight of earlier gradients. A ball in which nothing was found yet grows by ``growth``. ρ begins
    at ‖x − x₀‖ or, at x₀, at the distance of the tangent plane, and does not fall below ``smallest``.
    """

    norm: Norm
    memory: float
    growth: float
    smallest: float = 0.0

    def aimed(self, problem: Problem) -> Move:
        if problem.enough is None or self.norm != problem.norm:
            return self
        return replace(self, smallest=INSIDE * problem.enough)

    def begin(self, problem: Problem, x: Points) -> State:
        x0 = problem.x0
        widest = self.norm.size(problem.box.farthest(x0)).clamp(max=1 / TINY)
        return x, torch.zeros_like(x), torch.cat([self.norm.size(x - x0), torch.zeros_like(widest), widest], dim=1)

    def move(self, problem: Problem, numbers: Tensor, c: Tensor, g: Tensor, *state: Tensor) -> State:
        x, v, ball = state
        if self.smallest:
            least = self.smallest / torch.minimum(ball[:, :1], self.norm.size(x - problem.x0)).clamp(min=TINY)
            eta, gamma, a = numbers.expand(len(x), -1).split(1, dim=1)
            gamma = torch.where(c < 0, torch.minimum(gamma, (1 - least).clamp(min=0)), gamma)
            numbers = torch.cat([eta, gamma, a], dim=1)
        after: State = descend(
            self.norm, x, v, ball, numbers, c, g, problem.x0, problem.box, memory=self.memory, growth=self.growth
        )
        return after


@fusible
def descend(
    norm: Norm, x: Points, v: Points, ball: Tensor, numbers: Tensor, c: Scalars, g: Points, x0: Points, box: Box, *,
    memory: float, growth: float,
) -> tuple[Points, Points, Tensor]:  # fmt: skip
    """One step of a descent."""
    (eta, gamma, a), (radius, found, widest) = numbers.split(1, dim=1), ball.split(1, dim=1)
    size, dual, step_norm = norm.size(x - x0), norm.dual(g).clamp(min=TINY), norm.step_norm
    radius = torch.where(radius > 0, radius, (c / dual).clamp(min=TINY))
    found = torch.maximum(found, (c < 0).to(found))
    grown = 1 + torch.where(found > 0, gamma, gamma.clamp(min=growth))
    radius = torch.where(c < 0, torch.minimum(radius, size) * (1 - gamma), radius * grown).minimum(widest)
    v = memory * v + g / dual
    u = v / LINF.size(v).clamp(min=TINY)
    s = step_norm.steepest(torch.sign(u) * u.abs() ** a)
    if step_norm is not norm:
        ratio = step_norm.size(x - x0) / size.clamp(min=TINY)
        s = torch.where(size > 0, ratio, dual / step_norm.dual(g).clamp(min=TINY)) * s
    x = box.clamp(norm.onto_ball(x - eta * radius * s, x0, radius))
    return x, v, torch.cat([radius, found, widest], dim=1)


@final
@dataclass(frozen=True)
class Slide(GradientMove):
    """Restoration r and projection p from one gradient, averaged with earlier ones: x⁺ = r + β (p − r).

    The plan holds β, how far past the plane r lies as a share of the distance (at x₀, of that of the plane), and the
    weight of earlier gradients.
    """

    def begin(self, problem: Problem, x: Points) -> State:
        return x, torch.zeros_like(x), torch.zeros_like(x[:, :1]).expand(-1, 3)

    def move(self, problem: Problem, numbers: Tensor, c: Tensor, g: Tensor, *state: Tensor) -> State:
        (beta, past, average), (x, v, ball) = numbers.split(1, dim=1), state
        x0, norm, box = problem.x0, problem.norm, problem.box
        length = L2.size(g).clamp(min=TINY)
        v = average * v + (1 - average) * g / length
        size = norm.size(x - x0)
        size = torch.where(size > 0, size, c.abs() / norm.dual(g).clamp(min=TINY))
        r = c / length + past * size * norm.dual(v)
        z = norm.onto_plane(x, v, r, box)
        p = norm.onto_plane(x0, v, (v * (x0 - z)).sum(1, keepdim=True), box)
        return box.clamp(z + beta * (p - z)), v, ball
