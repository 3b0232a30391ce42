r"""Carlini–Wagner (2017): a distance penalty and a hinged constraint, descended by Adam, their balance searched.

.. math:: \min_w \; D(x - x_0) + m \max(c(x) + \kappa, 0), \qquad x = \tfrac{lo + hi}{2} + \tfrac{hi - lo}{2} \tanh w

For each sample the multiplier m is raised tenfold until an adversarial point appears, then bisected.

=====  =======================  ========================================================================
norm   D(δ)                     remark
=====  =======================  ========================================================================
l2     Σ δᵢ²                    each descent starts at x₀
linf   Σ max(|δᵢ| − τ, 0)       τ = 0.9 × the smallest adversarial ‖δ‖∞ so far, and descents start there
=====  =======================  ========================================================================

Deviations. δ is in units of the (widest side of the) box, so that m means the same for pixels to 1 and to 255.
Coordinates without a finite box are descended as they are, without the tanh. Samples abort each by itself, by the
least loss met so far, where Foolbox's batch aborts by its present sum. τ follows at every step, where the paper lowers
it from one descent to the next, and m is searched as in ℓ2, from 10⁴ times ``initial``.
The last of ten searches is not repeated at the smallest m that worked: here it would give the same points again.
κ only steers the search: the nearest adversarial point of any confidence is kept.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.norms import L2, LINF, Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Bound, Points, Scalars

EDGE = 0.999999  # inputs are pulled in by this much: at the wall itself w is infinite


class Penalty(Protocol):
    """How large a perturbation is, as Adam sees it."""

    @property
    def unit(self) -> float:
        """What the first multiplier is counted in."""
        ...

    @property
    def steady(self) -> bool:
        """Whether D stays the same while it is descended: only then does a stalled loss mean anything."""
        ...

    def start(self, problem: Problem) -> Points:
        """Where each descent begins."""
        ...

    def __call__(self, delta: Points, reached: Scalars) -> tuple[Scalars, Points]:
        """D(δ) and ∇D(δ), given the smallest adversarial size so far"""
        ...


@dataclass(frozen=True)
class Squares:
    """Σ δᵢ², each descent from x₀"""

    unit: float = 1.0
    steady: bool = True

    def start(self, problem: Problem) -> Points:
        return problem.x0

    def __call__(self, delta: Points, reached: Scalars) -> tuple[Scalars, Points]:
        return delta.square().sum(1, keepdim=True), 2 * delta


@dataclass(frozen=True)
class Excess:
    """Σ max(|δᵢ| − τ, 0), τ a share of what was reached, each descent from the nearest adversarial point so far.

    The first descent, without a τ, finds something whatever m is, and then m only falls: so it begins high.
    """

    share: float = 0.9
    unit: float = 1e4
    steady: bool = False

    def start(self, problem: Problem) -> Points:
        return problem.incumbent.points

    def __call__(self, delta: Points, reached: Scalars) -> tuple[Scalars, Points]:
        excess = (delta.abs() - self.share * reached).clamp(min=0)
        return excess.sum(1, keepdim=True), torch.sign(delta) * torch.sign(excess)


PENALTIES: dict[Norm, Penalty] = {L2: Squares(), LINF: Excess()}


@dataclass(frozen=True)
class _Tanh:
    """The box as the image of all of space: x = centre + half · tanh w."""

    centre: Bound
    half: Bound
    walled: Tensor

    def outside(self, x: Points) -> Points:
        """The w of x."""
        unit = (x - self.centre) / self.half
        return torch.where(self.walled, torch.atanh(EDGE * unit), unit)

    def inside(self, w: Points) -> tuple[Points, Points]:
        """The x of w, and its slope dx/dw."""
        unit = torch.where(self.walled, torch.tanh(w), w)
        return self.centre + self.half * unit, self.half * torch.where(self.walled, 1 - unit.square(), 1)


@final
@dataclass(frozen=True, kw_only=True)
class CarliniWagner(Attack):
    """``searches`` values of the multiplier, from ``initial``, each with at most ``steps`` steps of Adam.

    ``abort`` (ℓ2): a sample that lowered its least loss by under a ten-thousandth in a tenth of the steps waits for the
    next search.
    """

    norms: ClassVar = tuple(map(str, PENALTIES))
    cost: ClassVar = "1 forward + 1 backward"
    reference: ClassVar = "Carlini, Wagner 2017"

    searches: int = 9
    steps: int = 1000
    rate: float = 0.01
    confidence: float = 0.0
    initial: float = 1e-3
    abort: bool = True

    def __call__(self, problem: Problem) -> None:
        m = torch.full_like(problem.incumbent.distance, self.initial * PENALTIES[problem.norm].unit)
        lower, upper = torch.zeros_like(m), torch.full_like(m, torch.inf)
        for _ in range(self.searches):
            found = self.descend(problem, m)
            lower, upper = torch.where(found, lower, m), torch.where(found, m, upper)
            m = torch.where(torch.isfinite(upper), (lower + upper) / 2, 10 * m)

    def descend(self, problem: Problem, m: Scalars) -> Tensor:
        """Adam with this multiplier: whether it met an adversarial point, (n, 1)."""
        penalty, space, unit = PENALTIES[problem.norm], _tanh(problem), _width(problem)
        home, _ = space.inside(space.outside(problem.x0))
        w = space.outside(penalty.start(problem))
        adam = torch.optim.Adam([w], lr=self.rate)
        found = torch.zeros_like(m, dtype=torch.bool)
        least = checked = torch.full_like(m, torch.inf)
        with problem.masked(torch.ones_like(found[:, 0])) as running:
            for k in range(self.steps):
                x, slope = space.inside(w)
                c, g = running.value_and_gradient(problem.box.clamp(x), offset=-self.confidence)
                D, gradient = penalty((x - home) / unit, problem.incumbent.distance / unit)
                found = found | (c < 0)
                w.grad = slope * (gradient / unit + torch.where(c > 0, m * g, 0))
                adam.step()
                least = torch.minimum(least, D + m * c.clamp(min=0))
                if self.abort and penalty.steady and k % -(-self.steps // 10) == 0:
                    running.budget.deactivate((least > 0.9999 * checked)[:, 0])
                    checked = least
        return found


def _tanh(problem: Problem) -> _Tanh:
    walled = torch.isfinite(problem.box.hi - problem.box.lo)
    centre = torch.where(walled, (problem.box.lo + problem.box.hi) / 2, 0)
    return _Tanh(centre, torch.where(walled, (problem.box.hi - problem.box.lo) / 2, 1), walled)


def _width(problem: Problem) -> Bound:
    """The widest side of the box, 1 where it has none."""
    widest = problem.box.width.amax(1, keepdim=True)
    return torch.where(widest > 0, widest, 1)
