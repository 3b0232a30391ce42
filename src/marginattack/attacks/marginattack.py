r"""MarginAttack (Zhang, Chang, Yu, Qian 2019): restore to the boundary, project towards the input, repeat.

.. math::
    z &= \arg\min_{z \in box} \|z - x\| \quad \text{s.t.} \quad \nabla c(x)^\top (z - x) = -\alpha c(x)
    && \text{restoration, Eqs. 3, 13} \\
    x^+ &= z - \beta a \nabla d(z - x_0) - \beta b \, s(z) && \text{projection, Eq. 6}

The two designs of (a, b) are ``TangentProjection`` and ``LinearProjection`` (exact: ``BallProjection``); docs/method.md
lists every deviation.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from marginattack._deprecation import renamed
from marginattack.attacks.attack import Attack, keeps_margins
from marginattack.core.box import Box
from marginattack.core.budget import BudgetExhausted
from marginattack.core.norms import L2, Norm
from marginattack.core.problem import ClassConstraint, Problem, Step
from marginattack.core.schedules import Constant, Cosine, Geometric, Schedule
from marginattack.core.types import Labels, Points, Scalars
from marginattack.errors import InputError

_NAMES = {"Slide": "TangentProjection", "Shrink": "BallProjection", "ByNorm": "DefaultProjection"}
__getattr__ = renamed(__name__, {old: f"{__name__}:{new}" for old, new in _NAMES.items()})

PATIENCE = 10  # pairs of moves after which ``gain`` is tested
SHORTEST = 8  # the fewest moves per followed class, and passes per ranked class

Number: TypeAlias = float | Tensor
# (problem, x, c, ∇c, α) ↦ z with ∇cᵀ(z − x) = −α c
Restoration: TypeAlias = Callable[[Problem, Points, Scalars, Points, Number], Points]
# (problem, z, ∇c(z), β) ↦ x⁺, nearer to x₀
Projection: TypeAlias = Callable[[Problem, Points, Points, Number], Points]


@dataclass(frozen=True)
class InBox:
    """The shortest restoration inside the box, exact (Eq. 13)."""

    def __call__(self, problem: Problem, x: Points, c: Scalars, g: Points, alpha: Number) -> Points:
        return problem.norm.onto_plane(x, g, alpha * c, problem.box)


@dataclass(frozen=True)
class Clipped:
    """The shortest restoration without the box (Eq. 4), then clipped to it, as in other attacks."""

    def __call__(self, problem: Problem, x: Points, c: Scalars, g: Points, alpha: Number) -> Points:
        unbounded = torch.full_like(problem.box.lo, torch.inf)
        return problem.box.clamp(problem.norm.onto_plane(x, g, alpha * c, Box(-unbounded, unbounded)))


@dataclass(frozen=True)
class ActiveSet:
    """The paper's active-set loop (Eqs. 14, 15) with few passes, as in the first author's code; many give ``InBox``."""

    passes: int = 5

    def __call__(self, problem: Problem, x: Points, c: Scalars, g: Points, alpha: Number) -> Points:
        s, z = problem.norm.steepest(g), x
        free = torch.ones_like(x, dtype=torch.bool)
        for _ in range(self.passes):
            fixed = torch.where(free, 0, g * (z - x)).sum(1, keepdim=True)
            slope = torch.where(free, g * s, 0).sum(1, keepdim=True)
            step = torch.where(slope > 0, (alpha * c + fixed) / slope, 0) * s
            z = torch.where(free, problem.box.clamp(x - step), z)
            free = free & (x - step >= problem.box.lo) & (x - step <= problem.box.hi)
        return z


@dataclass(frozen=True)
class TangentProjection:
    """First design, keeps c to first order: x⁺ = z + β (p − z), p the point of the tangent plane nearest to x₀.

    For ℓ2 this is Eq. 6 with ∇d = z − x₀, a = 1, b = −a ∇cᵀ∇d / ∇cᵀs (Eq. 8, its sign corrected); p is in the box.
    """

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        r = (g * (problem.x0 - z)).sum(1, keepdim=True)
        p = problem.norm.onto_plane(problem.x0, g, r, problem.box)
        return z + beta * (p - z)


@dataclass(frozen=True)
class BallProjection:
    """Second design, shrinks the perturbation by β exactly: z − βb s, projected onto the ball of (1 − β)‖z − x₀‖.

    ``b`` is in units of the input or, with ``relative``, of ‖z − x₀‖, which makes the move independent of scale.
    """

    b: float
    relative: bool = False

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        size = problem.norm.size(z - problem.x0)
        step = self.b * size if self.relative else self.b
        pushed = z - beta * step * problem.norm.steepest(g)
        return problem.norm.onto_ball(pushed, problem.x0, (1 - beta) * size)


@dataclass(frozen=True)
class LinearProjection:
    """Second design, linearised: Eq. 6 with a = (d − b ∇dᵀs) / ∇dᵀ∇d (Eqs. 9 and 10, their signs put right).

    d is the dual norm of ``dual`` at v = z − x₀. With ℓ2, a∇d = (1 − b vᵀs / vᵀv) v, which is Eq. 10 to the letter for
    ∇d = v. With ℓ1, d is ℓ∞ and ∇d its subgradient: a single coordinate shrinks, the largest.
    """

    b: float
    dual: Norm = L2

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        v, s = z - problem.x0, problem.norm.steepest(g)
        d, grad_d = self.dual.dual(v), self.dual.steepest(v)
        length = (grad_d * grad_d).sum(1, keepdim=True)
        a = torch.where(length > 0, (d - self.b * (grad_d * s).sum(1, keepdim=True)) / length, 0)
        return z - beta * a * grad_d - beta * self.b * s


@dataclass(frozen=True)
class DefaultProjection:
    """The design that suits the norm, as in the paper: in ℓ∞ the second, with a share of β, elsewhere the first.

    In ℓ∞ the nearest point of the plane is a corner of the ball, which jumps where a gradient entry changes its sign.
    """

    tangent: TangentProjection = TangentProjection()
    ball: BallProjection = BallProjection(b=4.0, relative=True)
    ball_share: float = 0.25

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        if problem.norm.shrinks:
            return self.ball(problem, z, g, self.ball_share * beta)
        return self.tangent(problem, z, g, beta)


@final
@dataclass(frozen=True)
class PairStep(Step):
    """A restoration from x, then a projection; the plan holds α, ε and β."""

    restoration: Restoration
    projection: Projection
    queries: ClassVar = 2

    def __call__(self, problem: Problem, numbers: Tensor, *state: Tensor) -> tuple[Points]:
        (alpha, offset, beta), (x,) = numbers.split(1, dim=1), state
        c, g = problem.value_and_gradient(x, offset=offset)
        z = self.restoration(problem, x, c, g, alpha)
        return (project(problem, self.projection, z, beta),)


@final
@dataclass(frozen=True)
class ClosingStep(Step):
    """A restoration alone; the plan holds α and ε."""

    restoration: Restoration
    queries: ClassVar = 1

    def __call__(self, problem: Problem, numbers: Tensor, *state: Tensor) -> tuple[Points]:
        (alpha, offset), (x,) = numbers.split(1, dim=1), state
        c, g = problem.value_and_gradient(x, offset=offset)
        problem.observer.mark("closing")
        return (self.restoration(problem, x, c, g, alpha),)


def project(problem: Problem, projection: Projection, z: Points, beta: Number) -> Points:
    """A projection from z, inside the box."""
    problem.observer.mark("restoration")
    _, g = problem.value_and_gradient(z)
    problem.observer.mark("projection")
    return problem.box.clamp(projection(problem, z, g, beta))


@final
@dataclass(frozen=True, kw_only=True)
class MarginAttack(Attack):
    """Alternating restorations and projections, then restorations alone (Alg. 1).

    A target scan restores towards each of several classes. As in the paper (``follow=0``), the first restorations are
    scans and keep the nearest restored point. With ``follow``, one scan ranks the classes; the nearest are followed for
    a share of the moves each, and the nearest point that this finds gets the other moves, towards any class.

    Args:
        moves: Restorations and projections per start; fewer where the budget does not suffice.
        closing: How many of ``moves`` are the restorations at the end; each run has the same share of them.
        scans: How many restorations are target scans, if ``follow`` is 0.
        candidates: How many of the highest other classes a target scan includes.
        follow: How many classes are followed; with several starts, the first is then x₀.
        rescue: The most extra restorations where nothing was found: far out each projection undoes the restoration.
        scan_near: Whether a scan keeps the restored point nearest to the "input" or to the "iterate".
        offset: ε of Eq. 2 per pair of moves, as a schedule.
        closing_offset: ε per closing move.
        alpha: α per pair of moves.
        closing_alpha: α of the closing moves.
        beta: β per pair of moves.
        projection: ``TangentProjection()``, ``LinearProjection(b=...)``, ``BallProjection(b=...)``, or by default the
            one that suits the norm.
        restoration: ``InBox()``, ``Clipped()`` or ``ActiveSet()``.
        restarts: Number of starts.
        radius: u of Eq. 17: starts are uniform within this distance of x₀ per coordinate.
        until_misclassified: Whether the closing moves of a sample end at its first misclassified iterate.
        gain: A sample stops once ten pairs of moves lowered its distance by less than this share; for a β that falls
            fast, as in the presets. With the default β most is gained late: use fewer ``moves`` instead.

    Raises:
        InputError: A number is out of range.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.MarginAttack(moves=40, closing=4)
        >>> round(ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).distance.item(), 3)
        0.35
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    any_norm: ClassVar = True
    cost: ClassVar = "1 forward + 1 backward per move; a scan 1 backward per candidate"
    reference: ClassVar = "Zhang, Chang, Yu, Qian 2019"

    moves: int = 200
    closing: int = 20
    scans: int = 10
    candidates: int = 10
    follow: int = 3
    rescue: int = 100
    scan_near: Literal["input", "iterate"] = "input"
    offset: Schedule = Constant(0.0)
    closing_offset: Schedule = Geometric(-1e-7, -1e-2)
    alpha: Schedule = Constant(1.0)
    closing_alpha: float = 1.0
    beta: Schedule = Cosine(1.0, 0.005)
    projection: Projection = DefaultProjection()
    restoration: Restoration = InBox()
    restarts: int = 1
    radius: float = 0.0
    until_misclassified: bool = False
    gain: float = 0.0

    def __post_init__(self) -> None:
        least = {"moves": 1, "restarts": 1, "candidates": 1, "closing": 0, "scans": 0, "follow": 0, "rescue": 0}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise InputError(f"{name} is {getattr(self, name)}: it must be at least {number}")
        if not 0 <= self.gain < 1:
            raise InputError(f"gain is {self.gain}: it must be at least 0 and below 1")
        if not (isinstance(self.radius, Real) and 0 <= self.radius < inf):
            raise InputError(f"radius is {self.radius!r}: give a distance of 0 or more")
        for name in ("offset", "closing_offset", "alpha", "beta"):
            if not callable(value := getattr(self, name)):
                hint = f"give a schedule, such as Constant({value!r}) of marginattack.core.schedules"
                raise InputError(f"{name} is {value!r}: {hint}")

    def low_precision(self, norm: Norm, budget: int | None) -> bool:
        """As in ``Race``, but not with ``gain``, where samples that stop early have no closing moves."""
        return not self.gain and keeps_margins(norm, budget or 2 * self.moves * self.restarts)

    def __call__(self, problem: Problem) -> None:
        share = problem.budget.remaining // self.restarts
        for restart in range(self.restarts):
            passes = share if self.gain else problem.budget.remaining // (self.restarts - restart)
            with problem.subproblem() as attempt:
                at_input = self.follow > 0 and restart == 0 < self.restarts - 1
                self.attempt(attempt, problem.x0 if at_input else self.start(attempt), passes)

    def attempt(self, problem: Problem, x: Points, passes: int) -> None:
        """From one start: follow the nearest classes, then continue from the nearest point found."""
        before = problem.budget.remaining
        near = self.nearest_classes(problem, x, min(self.follow, passes // (2 * SHORTEST) - 2))
        classes = min(self.candidates, problem.evaluator.classes - 1)
        scans = 0 if self.follow or problem.targeted else min(self.scans, passes // (4 * classes))
        # Where the budget does not pay for all moves, fewer are planned, so that the closing moves are included.
        ends = 2 if problem.has_low_precision else 1  # forwards of a run: its last point, and the confirmation
        passes -= before - problem.budget.remaining + scans * (classes - 1) + ends * (len(near) + 1)
        moves = max(1, min(self.moves, passes // 2))
        share = moves // (len(near) + 2)
        for label in near:
            with problem.subproblem(targets=label) as towards:
                self.run(towards, x, share, scans=0)
        begin = torch.where(torch.isfinite(problem.incumbent.distance), problem.incumbent.points, x)
        self.run(problem, begin, moves - len(near) * share, scans)
        if self.rescue:
            with problem.masked(torch.isinf(problem.incumbent.distance[:, 0])) as without_point:
                self.close(without_point, x, self.rescue)

    def run(self, problem: Problem, x: Points, moves: int, scans: int) -> None:
        """Pairs of moves from x, in low precision where there is one, then the closing moves in full precision."""
        problem.observer.mark("")
        pairs = (moves - round(min(self.closing / self.moves, 0.5) * moves)) // 2
        step, closing = PairStep(self.restoration, self.projection), moves - 2 * pairs
        with nullcontext(problem) if self.gain else problem.for_search(at=(1.0,)) as search:
            for k in range(min(scans, pairs)):
                z = self.scan(search, x, self.alpha(k, pairs), self.offset(k, pairs))
                x = project(search, self.projection, z, self.beta(k, pairs))
            plan = [(self.alpha(k, pairs), self.offset(k, pairs), self.beta(k, pairs)) for k in range(pairs)][scans:]
            if not self.gain:
                (x,) = search.run(step, plan, x)
        if self.gain:
            self.run_while_gaining(problem, x, step, plan, closing)
        else:
            self.close(problem, x, closing)

    def run_while_gaining(
        self, problem: Problem, x: Points, step: PairStep, plan: Sequence[Sequence[float]], closing: int
    ) -> None:
        """The pairs of the plan and the closing moves, without samples that gained less than ``gain``."""
        rows = torch.arange(len(x))
        with suppress(BudgetExhausted):  # other samples may still pay for another start
            for first in range(0, len(plan), PATIENCE):
                block = plan[first : first + PATIENCE]
                with problem.subproblem(rows, known=True) as part:
                    before = part.incumbent.distance
                    (x,) = part.run(step, block, x)
                if len(block) == PATIENCE:
                    gained = (part.incumbent.distance <= (1 - self.gain) * before)[:, 0]
                    rows, x = rows[gained.cpu()], x[gained]
            with problem.subproblem(rows, known=True) as part:
                self.close(part, x, closing)

    def close(self, problem: Problem, x: Points, moves: int) -> None:
        """Restorations alone, further and further past the boundary."""
        plan = [(self.closing_alpha, self.closing_offset(j, moves)) for j in range(moves)]
        if self.until_misclassified:
            self.close_until_misclassified(problem, x, plan)
            return
        (x,) = problem.run(ClosingStep(self.restoration), plan, x)
        problem.value(x)

    def close_until_misclassified(self, problem: Problem, x: Points, plan: Sequence[Sequence[float]]) -> None:
        """The closing moves of the plan, without samples that are misclassified: c < −ε (in the paper ≤ ε)."""
        with problem.masked(torch.ones(len(x), dtype=torch.bool)) as left:
            for alpha, offset in plan:
                c, g = left.value_and_gradient(x, offset=offset)
                left.budget.deactivate((c < -offset)[:, 0])
                left.observer.mark("closing")
                x = self.restoration(left, x, c, g, alpha)
            left.value(x)

    def start(self, problem: Problem) -> Points:
        """x₀, or uniform within ``radius`` of it in every coordinate (Eq. 17)."""
        if self.radius == 0:
            return problem.x0
        return problem.box.clamp(problem.x0 + self.radius * (2 * problem.draws.uniform() - 1))

    def scan(self, problem: Problem, x: Points, alpha: float, offset: float) -> Points:
        """The nearest of the points restored towards each candidate class (Eq. 16)."""
        centre = problem.x0 if self.scan_near == "input" else x
        constraints = problem.class_constraints(x, most=self.candidates, offset=offset)
        points, distance = self.restore_each(problem, x, constraints, alpha, centre)
        nearest = distance.argmin(0, keepdim=True)
        return points.gather(0, nearest.expand(1, *x.shape))[0]

    def nearest_classes(self, problem: Problem, x: Points, number: int) -> list[Labels]:
        """The classes whose restored points are nearest to x₀, the nearest first; none for a targeted problem."""
        if problem.targeted or number <= 0:
            return []
        constraints = problem.class_constraints(x, most=min(self.candidates, problem.budget.remaining // SHORTEST))
        _, distance = self.restore_each(problem, x, constraints, 1.0, problem.x0)
        order = distance[..., 0].argsort(dim=0, stable=True)
        return list(torch.stack([constraint.label for constraint in constraints]).gather(0, order)[:number])

    def restore_each(
        self, problem: Problem, x: Points, constraints: list[ClassConstraint], alpha: float, centre: Points
    ) -> tuple[Tensor, Tensor]:
        """The restored point of each class and its distance from the centre, infinite if the box ends before it."""
        points, distances = [], []
        for _, c, g in constraints:
            z = self.restoration(problem, x, c, g, alpha)
            missing = ((g * (z - x)).sum(1, keepdim=True) + alpha * c).abs()
            rounding = 100 * torch.finfo(x.dtype).eps * problem.norm.dual(g) * problem.norm.size(x)
            missed = missing > 1e-3 * alpha * c.abs() + rounding
            points.append(z)
            distances.append(torch.where(missed, torch.inf, problem.norm.size(z - centre)))
        return torch.stack(points), torch.stack(distances)
