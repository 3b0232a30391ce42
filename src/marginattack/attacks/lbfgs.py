r"""L-BFGS (Szegedy et al. 2014): a loss and the squared distance, minimised in the box, their balance searched.

.. math:: \min_{x \in [lo, hi]^d} \; \tfrac{1}{2} \|x - x_0\|_2^2 + m \, \ell(x)

by scipy's L-BFGS-B. For each sample the multiplier m grows geometrically until the minimiser is adversarial, and is
then bisected to the smallest that works. Targeted, as in the paper, ℓ is the cross-entropy of the target.

Deviations. Untargeted, which the paper does not treat, ℓ is c itself: the slope of log p vanishes for a sure model.
The first m is |ℓ| / ‖∇ℓ‖² at x₀, which solves a linear model, so no setting depends on the scale of pixels or logits.
m is bisected in its logarithm. Samples run one at a time, as scipy's solver does.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core import losses
from marginattack.core.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class LBFGS(Attack):
    """At most ``growths`` multipliers, each ``growth`` times the last, then ``bisections``; each of ``steps`` steps."""

    norms: ClassVar = ("l2",)
    cost: ClassVar = "1 forward + 1 backward an evaluation, one or two evaluations a step"
    reference: ClassVar = "Szegedy et al. 2014"

    growths: int = 10
    growth: float = 2.0
    bisections: int = 8
    steps: int = 50

    def __call__(self, problem: Problem) -> None:
        problem.for_each_sample(self.search)

    def search(self, problem: Problem) -> None:
        """The smallest multiplier that works, for one sample."""
        m = self.first(problem)
        lower = upper = 0.0
        for _ in range(self.growths):
            if self.minimise(problem, m):
                upper = m
                break
            lower, m = m, self.growth * m
        for _ in range(self.bisections if upper else 0):
            m = (upper * (lower or upper / self.growth)) ** 0.5
            lower, upper = (lower, m) if self.minimise(problem, m) else (m, upper)

    def first(self, problem: Problem) -> float:
        """The multiplier at which the linearised minimiser lies on the boundary."""
        c, g = problem.value_and_gradient(problem.x0, loss=_loss(problem))
        return float(c.abs() / g.square().sum().clamp(min=torch.finfo(g.dtype).tiny))

    def minimise(self, problem: Problem, m: float) -> bool:
        """Whether the minimiser for this multiplier is adversarial; every point on the way was looked at."""
        from scipy.optimize import Bounds, minimize

        of, x0 = _loss(problem), problem.x0.double()

        def objective(point: Any) -> tuple[float, Any]:
            x = torch.as_tensor(point, device=x0.device)[None]
            c, g = problem.value_and_gradient(x.to(problem.x0), loss=of)
            value = (x - x0).square().sum() / 2 + m * c.sum()
            return float(value), (x - x0 + m * g)[0].cpu().numpy()

        start, lo, hi = (v.double().expand_as(x0)[0].cpu().numpy() for v in (x0, problem.box.lo, problem.box.hi))
        end = minimize(
            objective, start, jac=True, method="L-BFGS-B", bounds=Bounds(lo, hi), options={"maxiter": self.steps}
        )
        return bool(problem.value(torch.as_tensor(end.x, device=x0.device)[None].to(problem.x0)) < 0)


def _loss(problem: Problem) -> losses.Loss:
    return losses.CROSS_ENTROPY if problem.targeted else losses.MARGIN
