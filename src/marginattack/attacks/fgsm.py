r"""FGSM (Goodfellow, Shlens, Szegedy 2015) as a zero-confidence attack: one gradient, then a search for the step size.

.. math:: \min_r \|z(r) - x_0\| \;\; \text{s.t.} \;\; c(z(r)) \le 0, \qquad
    z(r) = \arg\min_{z \in box} \|z - x_0\| \;\; \text{s.t.} \;\; \nabla L(x_0)^\top (z - x_0) = -r
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@final
@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """The nearest crossing on the path of steepest descent at x₀, found with forward passes only.

    The path z(r) is clip(x₀ − t sign ∇L) for ℓ∞ and clip(x₀ − t ∇L) for ℓ2, as usual. For ℓ1 and ℓ0 it moves one
    coordinate after another to its bound. It ends at r = r_max in the corner of the box opposite to ∇L.

    Deviation: the step size is searched, as in Zhang et al. 2019; in the original it is fixed.

    Args:
        loss: What is minimised, one of ``marginattack.core.losses``.
        scan: Number of step sizes that are tried, up to r_max, until one crosses.
        growth: Factor from one step size to the next.
        halvings: Bisections between the first step size that crosses and the one before.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.FGSM()
        >>> round(ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).distance.item(), 3)
        0.35
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward in all, then 1 forward per step size"
    reference: ClassVar = "Goodfellow, Shlens, Szegedy 2015"

    loss: Loss = CROSS_ENTROPY
    scan: int = 80
    growth: float = 1.1
    halvings: int = 20

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("FGSM, which moves to a corner of the box,")
        _, g = problem.value_and_gradient(problem.x0, loss=self.loss)
        corner = torch.where(g > 0, problem.box.lo, problem.box.hi)
        r_max = (g * (problem.x0 - corner)).sum(1, keepdim=True)

        def z(share: Scalars) -> Points:
            return problem.norm.onto_plane(problem.x0, g, share * r_max, problem.box)

        shortest = self.growth ** (1 - self.scan)
        low = torch.zeros_like(problem.incumbent.distance)
        with problem.masked(torch.isinf(problem.incumbent.distance[:, 0])) as pending:
            for k in range(self.scan):
                share = torch.full_like(low, shortest * self.growth**k)
                pending.value(z(share))
                low = torch.where(torch.isinf(problem.incumbent.distance), share, low)
                pending.budget.deactivate(torch.isfinite(problem.incumbent.distance[:, 0]))
        high = (low * self.growth).clamp(shortest, 1)
        problem.budget.deactivate(torch.isinf(problem.incumbent.distance[:, 0]))
        for _ in range(self.halvings):
            middle, before = (low + high) / 2, problem.incumbent.distance
            problem.value(z(middle))
            crossed = problem.incumbent.distance < before
            low, high = torch.where(crossed, low, middle), torch.where(crossed, middle, high)
