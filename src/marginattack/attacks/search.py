r"""Bisection of the radius of a fixed-radius attack, per sample (Ilyas et al. 2018).

.. math:: \min \epsilon \;\; \text{s.t.} \;\; \text{the attack finds an adversarial point within } \epsilon
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final, runtime_checkable

import torch

from marginattack.attacks.attack import Attack
from marginattack.attacks.pgd import PGD, inside
from marginattack.core.losses import MARGIN
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@runtime_checkable
class FixedRadius(Protocol):
    """An attack that searches within a radius, one per sample, and can begin at given points."""

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None: ...


WITHIN = PGD(steps=40, step=0.1, loss=MARGIN, random=False)


@final
@dataclass(frozen=True, kw_only=True)
class Search(Attack):
    """Grow the radius until the attack succeeds, then bisect between the largest failure and the nearest success.

    The first radius is twice the distance of the tangent plane at x₀, so that no scale has to be given; it grows
    ``growth``-fold at most ``expansions`` times. Each of the ``levels`` begins at the incumbent, projected
    onto the smaller ball. A sample ends a level at its first success, and the search once its bracket is narrower than
    ``tolerance`` of its distance.

    Deviation: a success lowers the upper end to the distance found, which may be well below the radius tried.
    """

    norms: ClassVar = PGD.norms
    cost: ClassVar = "the attack's, at each radius tried"
    reference: ClassVar = "Ilyas, Engstrom, Athalye, Lin 2018"

    attack: FixedRadius = WITHIN
    levels: int = 12
    expansions: int = 8
    growth: float = 2.0
    tolerance: float = 1e-3

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("Search, which grows its radius to the size of the box,")
        failed = self.expand(problem)
        problem.budget.deactivate(torch.isinf(problem.incumbent.distance[:, 0]))
        for _ in range(self.levels):
            distance = problem.incumbent.distance
            problem.budget.deactivate((distance - failed <= self.tolerance * distance)[:, 0])
            radius = (failed + distance) / 2
            with problem.masked(torch.isfinite(distance[:, 0])) as found:
                self.attack.within(found, radius, inside(problem, problem.incumbent.points, radius))
            failed = torch.where(problem.incumbent.distance <= radius, failed, radius)

    def expand(self, problem: Problem) -> Scalars:
        """Radii that grow until something is found: the largest at which nothing was."""
        widest = problem.norm.size(problem.box.farthest(problem.x0))
        c, g = problem.value_and_gradient(problem.x0)
        # A flat or nearly crossed input has no useful slope: stay between a trace of the box's size and all of it.
        radius = (2 * c / problem.norm.dual(g)).nan_to_num(nan=torch.inf).clamp(min=1e-6 * widest, max=widest)
        failed = torch.zeros_like(radius)
        for _ in range(self.expansions):
            with problem.masked((torch.isinf(problem.incumbent.distance) & (failed < widest))[:, 0]) as pending:
                self.attack.within(pending, radius)
            failed = torch.where(torch.isinf(problem.incumbent.distance), radius, failed)
            radius = torch.minimum(self.growth * radius, widest)
        return failed
