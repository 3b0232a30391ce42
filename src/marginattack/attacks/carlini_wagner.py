r"""Carlini–Wagner (2017): Adam on a distance penalty plus a hinged constraint; their balance m is searched.

.. math:: \min_w \; D(x - x_0) + m \max(c(x) + \kappa, 0), \qquad x = \tfrac{lo + hi}{2} + \tfrac{hi - lo}{2} \tanh w

Per sample the multiplier m grows tenfold until an adversarial point appears, and is then bisected.

=====  =======================  ==================================================================================
norm   D(δ)                     remark
=====  =======================  ==================================================================================
l2     Σ δᵢ²                    each descent starts at x₀
linf   Σ max(|δᵢ| − τ, 0)       τ = 0.9 × the smallest adversarial ‖δ‖∞ so far, and descents start there; no tanh
=====  =======================  ==================================================================================

Deviations: δ is in units of the widest side of the box, so that m means the same for any pixel scale. Coordinates
without finite bounds are optimised without the tanh. Samples abort one by one, by their least loss; Foolbox aborts a
batch by its current sum. τ follows at every step, in the paper after each descent, and m is searched as in ℓ2, from 10⁴
times ``initial``. The last of ten searches is not repeated at the smallest m that worked: it would give the same
points. In ℓ∞ the box is kept by clamping, their projected descent, since tanh is flat at the bounds. κ only steers the
search: the nearest adversarial point counts.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.box import Box
from marginattack.core.norms import L2, LINF, Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars

EDGE = 0.999999  # inputs are scaled by this around the centre of the box, because w is infinite at a bound


class TanhBox:
    """x = centre + half · tanh w, which maps all points into the box; unbounded coordinates are not transformed."""

    def __init__(self, box: Box) -> None:
        self.bounded = torch.isfinite(box.hi - box.lo)
        self.centre = torch.where(self.bounded, (box.lo + box.hi) / 2, 0)
        self.half = torch.where(self.bounded, (box.hi - box.lo) / 2, 1)

    def w(self, x: Points) -> Points:
        """The w of x."""
        unit = torch.where(self.half > 0, (x - self.centre) / self.half, 0)
        return torch.where(self.bounded, torch.atanh(EDGE * unit), unit)

    def x(self, w: Points) -> tuple[Points, Points]:
        """The x of w, and dx/dw."""
        unit = torch.where(self.bounded, torch.tanh(w), w)
        return self.centre + self.half * unit, self.half * torch.where(self.bounded, 1 - unit.square(), 1)

    def confine(self, w: Points) -> Points:
        """The nearest w that is allowed."""
        return w


class ClampedBox(TanhBox):
    """x = centre + half · w, with w clamped to [−1, 1] after every step: their projected gradient descent.

    At a bound tanh is flat, so that leaving it takes hundreds of steps, and in ℓ∞ most coordinates must move.
    """

    def w(self, x: Points) -> Points:
        return torch.where(self.half > 0, (x - self.centre) / self.half, 0)

    def x(self, w: Points) -> tuple[Points, Points]:
        return self.centre + self.half * w, self.half.expand_as(w)

    def confine(self, w: Points) -> Points:
        return torch.where(self.bounded, w.clamp(-1, 1), w)


@dataclass(frozen=True)
class Squares:
    """Σ δᵢ² and its gradient, each descent from x₀"""

    unit: float = 1.0  # the first multiplier is ``initial`` times this
    space: type[TanhBox] = TanhBox
    fixed: bool = True  # whether D stays the same during a descent; only then is a stalled loss a reason to abort

    def start(self, problem: Problem, last: Points) -> Points:
        return problem.x0

    def __call__(self, delta: Points, smallest: Scalars) -> tuple[Scalars, Points]:
        return delta.square().sum(1, keepdim=True), 2 * delta


@dataclass(frozen=True)
class Excess:
    """Σ max(|δᵢ| − τ, 0) and its gradient, τ a share of the incumbent's distance, each descent from the incumbent.

    Without an incumbent there is no penalty, and the next descent continues where the last one ended. From the
    incumbent each descent finds something for any m, which therefore only falls and starts high.
    """

    share: float = 0.9
    unit: float = 1e4
    space: type[TanhBox] = ClampedBox
    fixed: bool = False

    def start(self, problem: Problem, last: Points) -> Points:
        return torch.where(torch.isfinite(problem.incumbent.distance), problem.incumbent.points, last)

    def __call__(self, delta: Points, smallest: Scalars) -> tuple[Scalars, Points]:
        excess = (delta.abs() - self.share * smallest).clamp(min=0)
        return excess.sum(1, keepdim=True), torch.sign(delta) * torch.sign(excess)


PENALTIES: dict[Norm, Squares | Excess] = {L2: Squares(), LINF: Excess()}


@final
@dataclass(frozen=True, kw_only=True)
class CarliniWagner(Attack):
    """Descents by Adam, one for each value of the multiplier that balances distance and constraint.

    Args:
        searches: Values of the multiplier.
        steps: The maximum number of steps of Adam per value.
        rate: Adam's learning rate.
        confidence: κ, by how much the logit of the wrong class must exceed the label's in the search.
        initial: The first multiplier.
        abort: In ℓ2, whether a sample waits for the next search once a tenth of the steps lowered its loss by < 0.01 %.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.CarliniWagner(searches=8, steps=30, rate=0.1)
        >>> 0.49 < ma.measure(torch.nn.Identity(), x, [0], "l2", attack=attack).distance.item() < 0.52
        True
    """

    norms: ClassVar = tuple(map(str, PENALTIES))
    cost: ClassVar = "1 forward + 1 backward per step"
    reference: ClassVar = "Carlini, Wagner 2017"

    searches: int = 9
    steps: int = 1000
    rate: float = 0.01
    confidence: float = 0.0
    initial: float = 1e-3
    abort: bool = True

    def __call__(self, problem: Problem) -> None:
        m = torch.full_like(problem.incumbent.distance, self.initial * PENALTIES[problem.norm].unit)
        lower, upper, x = torch.zeros_like(m), torch.full_like(m, torch.inf), problem.x0
        for _ in range(self.searches):
            found, x = self.descend(problem, m, x)
            lower, upper = torch.where(found, lower, m), torch.where(found, m, upper)
            m = torch.where(torch.isfinite(upper), (lower + upper) / 2, 10 * m)

    def descend(self, problem: Problem, m: Scalars, last: Points) -> tuple[Tensor, Points]:
        """Run Adam with this multiplier after a descent that ended at ``last``.

        Returns whether it found an adversarial point, (n, 1), and where it ended.
        """
        penalty = PENALTIES[problem.norm]
        space = penalty.space(problem.box)
        widest = problem.box.width.amax(1, keepdim=True)
        unit = torch.where(widest > 0, widest, 1)
        x0, _ = space.x(space.w(problem.x0))
        w = space.w(penalty.start(problem, last))
        adam = torch.optim.Adam([w], lr=self.rate)
        found = torch.zeros_like(m, dtype=torch.bool)
        least = checked = torch.full_like(m, torch.inf)
        with problem.masked(~found[:, 0]) as running:
            for k in range(self.steps):
                x, slope = space.x(w)
                c, g = running.value_and_gradient(problem.box.clamp(x), offset=-self.confidence)
                D, gradient = penalty((x - x0) / unit, problem.incumbent.distance / unit)
                found = found | (c < 0)
                w.grad = slope * (gradient / unit + torch.where(c > 0, m * g, 0))
                adam.step()
                w.copy_(space.confine(w))
                least = torch.minimum(least, D + m * c.clamp(min=0))
                if self.abort and penalty.fixed and k % -(-self.steps // 10) == 0:
                    running.budget.deactivate((least > 0.9999 * checked)[:, 0])
                    checked = least
        return found, problem.box.clamp(space.x(w)[0])
