r"""Any attack within a fixed radius, made to find the margin: each sample's radius is searched (Ilyas et al. 2018).

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
    """An attack that can be asked to look within a radius, for each sample its own, and to begin at given points."""

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None: ...


WITHIN = PGD(steps=40, step=0.1, loss=MARGIN, random=False)


@final
@dataclass(frozen=True, kw_only=True)
class Search(Attack):
    """Grow the radius until the attack succeeds, then bisect between the largest failure and the nearest success.

    The first radius is twice what the slope of the logits at x₀ tells, so that no scale has to be given; it grows
    ``growth``-fold at most ``expansions`` times. Each of the ``levels`` begins at the best point so far, brought into
    the smaller ball. A sample ends at a level with its first success, and for good once the bracket is narrower than
    ``tolerance`` of its distance.

    Deviation: a success pulls the upper end to the distance found, which may be well below the radius tried.
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
        problem.need_walls("Search, which widens its radius to the size of the box,")
        failed = self.expand(problem)
        problem.drop(torch.isinf(problem.distance[:, 0]))
        for _ in range(self.levels):
            problem.drop((problem.distance - failed <= self.tolerance * problem.distance)[:, 0])
            radius = (failed + problem.distance) / 2
            with problem.only(torch.isfinite(problem.distance[:, 0])):
                self.attack.within(problem, radius, inside(problem, problem.best, radius))
            failed = torch.where(problem.distance <= radius, failed, radius)

    def expand(self, problem: Problem) -> Scalars:
        """Radii that grow until something is found: the largest at which nothing was."""
        widest = problem.norm.size(torch.maximum(problem.hi - problem.x0, problem.x0 - problem.lo))
        c, g = problem.c(problem.x0)
        # A flat or nearly crossed input has no useful slope: stay between a trace of the box's size and all of it.
        radius = (2 * c / problem.norm.dual(g)).nan_to_num(nan=torch.inf).clamp(min=1e-6 * widest, max=widest)
        failed = torch.zeros_like(radius)
        for _ in range(self.expansions):
            with problem.only((torch.isinf(problem.distance) & (failed < widest))[:, 0]):
                self.attack.within(problem, radius)
            failed = torch.where(torch.isinf(problem.distance), radius, failed)
            radius = torch.minimum(self.growth * radius, widest)
        return failed
