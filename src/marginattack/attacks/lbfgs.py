r"""L-BFGS (Szegedy et al. 2014): a loss plus the squared distance, minimised in the box; their balance m is searched.

.. math:: \min_{x \in [lo, hi]^d} \; \tfrac{1}{2} \|x - x_0\|_2^2 + m \, \ell(x)

by scipy's L-BFGS-B. Per sample the multiplier m grows geometrically until the minimiser is adversarial, and is then
bisected to the smallest that works. Targeted, as in the paper, ℓ is the cross-entropy of the target.

Deviations: untargeted, which the paper does not treat, ℓ is c, because the gradient of log p vanishes for confident
models. The first m is |ℓ| / ‖∇ℓ‖² at x₀, which solves a linear model, so that no setting depends on the scale of pixels
or logits. m is bisected in its logarithm. Samples run one at a time, as scipy's solver does.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core.losses import CROSS_ENTROPY, MARGIN, Loss
from marginattack.core.problem import Problem


@final
@dataclass(frozen=True, kw_only=True)
class LBFGS(Attack):
    """Minimisations by L-BFGS-B, one for each value of the multiplier that balances distance and loss.

    Args:
        growths: How often the multiplier may grow until it works.
        growth: Factor by which it grows.
        bisections: Bisections between the smallest multiplier that worked and the largest that did not.
        steps: The maximum number of steps per multiplier.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.LBFGS()
        >>> round(ma.measure(torch.nn.Identity(), x, [0], "l2", attack=attack).distance.item(), 2)
        0.49
    """

    norms: ClassVar = ("l2",)
    cost: ClassVar = "1 forward + 1 backward per evaluation, one or two evaluations per step"
    reference: ClassVar = "Szegedy et al. 2014"

    growths: int = 10
    growth: float = 2.0
    bisections: int = 8
    steps: int = 50

    def __call__(self, problem: Problem) -> None:
        problem.for_each_sample(self.attack_sample)

    def attack_sample(self, problem: Problem) -> None:
        """Search for the smallest multiplier that works, for a problem of one sample."""
        loss = CROSS_ENTROPY if problem.targeted else MARGIN
        value, g = problem.value_and_gradient(problem.x0, loss=loss)
        m = float(value.abs() / g.square().sum().clamp(min=torch.finfo(g.dtype).tiny))
        lower = upper = 0.0
        for _ in range(self.growths):
            if self.minimise(problem, loss, m):
                upper = m
                break
            lower, m = m, self.growth * m
        for _ in range(self.bisections if upper else 0):
            m = (upper * (lower or upper / self.growth)) ** 0.5
            lower, upper = (lower, m) if self.minimise(problem, loss, m) else (m, upper)

    def minimise(self, problem: Problem, loss: Loss, m: float) -> bool:
        """Minimise for this multiplier, querying all points on the way; return whether the minimiser is adversarial."""
        from scipy.optimize import Bounds, minimize

        x0 = problem.x0.double()

        def objective(point: Any) -> tuple[float, Any]:
            x = torch.as_tensor(point, device=x0.device)[None]
            value, g = problem.value_and_gradient(x.to(problem.x0), loss=loss)
            total = (x - x0).square().sum() / 2 + m * value.sum()
            return float(total), (x - x0 + m * g)[0].cpu().numpy()

        start, lo, hi = (v.double().expand_as(x0)[0].cpu().numpy() for v in (x0, problem.box.lo, problem.box.hi))
        box = Bounds(lo, hi)
        end = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=box, options={"maxiter": self.steps})
        return bool(problem.value(torch.as_tensor(end.x, device=x0.device)[None].to(problem.x0)) < 0)
