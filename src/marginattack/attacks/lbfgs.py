r"""L-BFGS (Szegedy et al. 2014): a loss and the squared distance, minimised in the box, their balance searched.

.. math:: \min_{x \in [lo, hi]^d} \; \tfrac{1}{2} \|x - x_0\|_2^2 + m \, \ell(x)

by scipy's L-BFGS-B. For each sample the multiplier m grows geometrically until the minimiser is adversarial; then it is
bisected to the smallest that works. Targeted, as in the paper, ℓ is the cross-entropy of the target.

Deviations. Untargeted, which the paper does not treat, ℓ is c itself: the slope of log p vanishes for a sure model. The
first m is |ℓ| / ‖∇ℓ‖² at x₀, which solves a linear model, so that no constant depends on the scale of pixels or logits.
Bisection is of log m, and starts at the solution before it. Samples run one at a time, since scipy's solver does.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from marginattack import losses
from marginattack.attacks.attack import Attack
from marginattack.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class LBFGS(Attack):
    """At most ``growths`` multipliers, each ``growth`` times the last, then ``bisections``; each ``steps`` iterations."""

    norms: ClassVar = ("l2",)
    cost: ClassVar = "1 forward + 1 backward an evaluation, about 1.1 evaluations a step"
    reference: ClassVar = "Szegedy et al. 2014"

    growths: int = 10
    growth: float = 3.0
    bisections: int = 8
    steps: int = 50

    def __call__(self, problem: Problem) -> None:
        problem.each(self.search)

    def search(self, problem: Problem) -> None:
        """The smallest multiplier whose minimiser is adversarial, for one sample."""
        of = losses.log_probability if problem.targeted else losses.margin
        value, gradient = problem.c(problem.x0, of=of)
        m = float(value.abs() / gradient.square().sum())
        upper = 0.0
