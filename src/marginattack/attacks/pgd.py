r"""PGD (Madry, Makelov, Schmidt, Tsipras, Vladu 2018): minimise a loss inside a ball of fixed radius.

.. math:: \min_x L(x) \;\; \text{s.t.} \;\; \|x - x_0\| \le \epsilon, \; x \in box, \qquad
    x^+ = \Pi_{ball}(x - \eta \, s), \;\; s = \arg\max_{\|s\| \le 1} \nabla L(x)^\top s
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars
from marginattack.errors import InputError


class FixedRadiusAttack(Attack):
    """An attack within a radius, which may differ per sample; the distances that it finds are no margins.

    ``eps`` has no default, since no radius suits all data; ``within`` does without it.
    """

    eps: float | None
    stop: bool

    def check_norm(self, norm: Norm) -> None:
        """Raise InputError unless the attack supports this norm and has a radius."""
        super().check_norm(norm)
        name = type(self).__name__
        if self.eps is None:
            raise InputError(f"{name} has no radius: give its name with one, NAME@8/255, or {name}(eps=8/255)")

    def __call__(self, problem: Problem) -> None:
        """Search in low precision where there is one; what float32 does not confirm is searched on from there in it."""
        assert self.eps is not None  # see check_norm
        radius, draws = torch.full_like(problem.incumbent.distance, self.eps), problem.draws.fork()
        if not self.stop:  # a claim that is not confirmed would hide points further out
            self.within(problem, radius)
            return
        with problem.for_search(at=(1.0,), claims=True) as search:
            search.solve(partial(self.within, radius=radius))
            points, distance = search.incumbent.points, search.incumbent.distance
        unconfirmed = (distance < problem.incumbent.distance)[:, 0]
        if search is not problem and bool(unconfirmed.any()):
            problem.budget.activate(unconfirmed)
            with problem.masked(unconfirmed) as again:
                self.within(replace(again, draws=draws), radius, points)

    def low_precision(self, norm: Norm, budget: int | None) -> bool:
        """Samples that end at their first adversarial point: whether there is one is decided in full precision."""
        return self.stop

    @abstractmethod
    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        """Attack each sample within its own radius; ``start`` replaces the first starting point."""

    def deactivate_found(self, problem: Problem, radius: Scalars) -> None:
        """With ``stop``, deactivate samples that have an adversarial point within their radius."""
        if self.stop:
            problem.budget.deactivate((problem.incumbent.distance <= radius)[:, 0])


@final
@dataclass(frozen=True, kw_only=True)
class PGD(FixedRadiusAttack):
    """Projected steepest descent within a fixed radius, from random starts.

    Deviations: every iterate counts, not only the last. Steps are steepest inside the box (``steepest_step``); the
    original steps and clips, which is the same away from the bounds.

    Args:
        eps: Radius of the ball around x₀.
        steps: Steps per start.
        step: Length of a step.
        relative: Whether ``step`` is a share of ``eps`` or a length in units of the input.
        loss: What is minimised, one of ``marginattack.core.losses``.
        random: Whether to start at a random point of the ball instead of x₀.
        restarts: Number of starts.
        stop: Whether a sample ends at its first adversarial point, at any distance up to ``eps``.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.PGD(eps=0.4, steps=20, step=0.1)
        >>> 0.35 < ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).distance.item() <= 0.4
        True
    """

    norms: ClassVar = ("l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward per step"
    reference: ClassVar = "Madry, Makelov, Schmidt, Tsipras, Vladu 2018"

    eps: float | None = None
    steps: int = 40
    step: float = 1 / 30
    relative: bool = True
    loss: Loss = CROSS_ENTROPY
    random: bool = True
    restarts: int = 1
    stop: bool = True

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        # All starts are drawn up front: the number of draws may not depend on when other samples of the batch end.
        points = [random_point(problem, radius) if self.random else problem.x0 for _ in range(self.restarts)]
        for x in points if start is None else [start, *points[1:]]:
            self.descend(problem, x, radius)

    def descend(self, problem: Problem, x: Points, radius: Scalars) -> None:
        """Run the descent from x."""
        length = self.step * radius if self.relative else torch.full_like(radius, self.step)
        for _ in range(self.steps):
            _, g = problem.value_and_gradient(x, loss=self.loss)
            self.deactivate_found(problem, radius)
            x = steepest_step(problem, x, g, length, radius)
        problem.value(x)
        self.deactivate_found(problem, radius)


def random_point(problem: Problem, radius: Scalars) -> Points:
    """A random point of the ball, clipped to the box.

    The distance is that of a uniform draw, t^(1/d) times the radius. The direction is uniform for ℓ∞; for other norms
    it slightly favours the diagonals, because it is drawn from the cube.
    """
    direction, t = 2 * problem.draws.uniform() - 1, problem.draws.uniform()[:, :1]
    distance = radius * t ** (1 / direction.shape[1])
    return into_ball(problem, problem.x0 + distance * direction / problem.norm.size(direction), radius)


def steepest_step(problem: Problem, x: Points, g: Points, length: Scalars, radius: Scalars) -> Points:
    """The shortest step in the box that lowers gᵀx as much as a free steepest step of that length, then the ball.

    Coordinates at a bound pass their part to the others. ℓ1 depends on it: the free step moves a single coordinate, and
    would stall once that one is at its bound. In ℓ2 and ℓ∞ it helps a little.
    """
    return into_ball(problem, problem.norm.onto_plane(x, g, length * problem.norm.dual(g), problem.box), radius)


def into_ball(problem: Problem, x: Points, radius: Scalars) -> Points:
    """Project x into the box and the ball, whose radius is reduced by the rounding error of a distance."""
    rounding = torch.finfo(x.dtype).eps * (problem.norm.size(problem.x0) + radius)
    return problem.norm.onto_ball(problem.box.clamp(x), problem.x0, (radius - rounding).clamp(min=0))
