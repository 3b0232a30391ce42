r"""Bisection of the radius of a fixed-radius attack, per sample (Ilyas et al. 2018).

.. math:: \min \epsilon \;\; \text{s.t.} \;\; \text{the attack finds an adversarial point within } \epsilon
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.attacks.pgd import PGD, FixedRadiusAttack, into_ball
from marginattack.core.losses import MARGIN
from marginattack.core.problem import Problem
from marginattack.core.types import Scalars

MARGIN_PGD = PGD(steps=40, step=0.1, loss=MARGIN, random=False)


@final
@dataclass(frozen=True, kw_only=True)
class Search(Attack):
    """Grow the radius until the attack succeeds, then bisect between the largest failure and the nearest success.

    The first radius is twice the distance to the tangent plane at x₀, so that no scale has to be given. Each level
    starts at the incumbent, projected onto the smaller ball.

    Deviation: a success lowers the upper end to the distance found, which may be well below the radius tried.

    Args:
        attack: The attack within a radius, such as ``PGD``.
        levels: Bisections.
        expansions: How often the radius may grow.
        growth: Factor by which it grows.
        tolerance: A sample ends when its bracket is narrower than this share of its distance.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.Search()
        >>> round(ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).distance.item(), 3)
        0.35
    """

    norms: ClassVar = PGD.norms
    cost: ClassVar = "the attack's, at each radius tried"
    reference: ClassVar = "Ilyas, Engstrom, Athalye, Lin 2018"

    attack: FixedRadiusAttack = MARGIN_PGD
    levels: int = 12
    expansions: int = 8
    growth: float = 2.0
    tolerance: float = 1e-3

    @property
    def needs_gradient(self) -> bool:  # type: ignore[override]
        """Whether the attack does: without a gradient at x₀ the first radius is the largest."""
        return self.attack.needs_gradient

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("Search, which grows its radius to the size of the box,")
        failed = self.expand(problem)
        problem.budget.deactivate(torch.isinf(problem.incumbent.distance[:, 0]))
        for _ in range(self.levels):
            distance = problem.incumbent.distance
            problem.budget.deactivate((distance - failed <= self.tolerance * distance)[:, 0])
            radius = (failed + distance) / 2
            with problem.masked(torch.isfinite(distance[:, 0])) as found:
                self.attack.within(found, radius, into_ball(problem, problem.incumbent.points, radius))
            failed = torch.where(problem.incumbent.distance <= radius, failed, radius)

    def expand(self, problem: Problem) -> Scalars:
        """Grow the radius until something is found; return the largest radius at which nothing was."""
        widest = problem.norm.size(problem.box.farthest(problem.x0))
        c, g = problem.value_and_gradient(problem.x0)
        # Where the gradient vanishes or x₀ is almost adversarial, the tangent plane gives no useful radius.
        radius = (2 * c / problem.norm.dual(g)).nan_to_num(nan=torch.inf).clamp(min=1e-6 * widest, max=widest)
        failed = torch.zeros_like(radius)
        for _ in range(self.expansions):
            with problem.masked((torch.isinf(problem.incumbent.distance) & (failed < widest))[:, 0]) as pending:
                self.attack.within(pending, radius)
            failed = torch.where(torch.isinf(problem.incumbent.distance), radius, failed)
            radius = torch.minimum(self.growth * radius, widest)
        return failed
