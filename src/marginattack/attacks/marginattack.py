r"""MarginAttack (Zhang, Chang, Yu, Qian 2019): hop to the boundary, slide along it towards the input, repeat.

.. math::
    z &= \arg\min_{z \in box} \|z - x\| \quad \text{s.t.} \quad \nabla c(x)^\top (z - x) = -\alpha c(x)
    && \text{restoration, Eqs. 3, 13} \\
    x^+ &= z - \beta a \nabla d(z - x_0) - \beta b \, s(z) && \text{projection, Eq. 6}

The two designs of (a, b) are the values ``Slide`` and ``Shrink``; docs/method.md lists every deviation.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.box import Box
from marginattack.core.budget import BudgetExhausted
from marginattack.core.problem import ClassConstraint, Problem, Step
from marginattack.core.schedules import Constant, Cosine, Geometric, Schedule
from marginattack.core.types import Labels, Points, Scalars

PATIENCE = 10  # pairs of moves, after which it is asked who gained by them
SHORTEST = 8  # moves, or passes a candidate, that make it worth to follow or to rank a class

Number: TypeAlias = float | Tensor

# (problem, x, c, ∇c, α) ↦ z with ∇cᵀ(z − x) = −α c
Restoration: TypeAlias = Callable[[Problem, Points, Scalars, Points, Number], Points]

# (problem, z, ∇c(z), β) ↦ x⁺, nearer to x₀
Projection: TypeAlias = Callable[[Problem, Points, Points, Number], Points]


@dataclass(frozen=True)
class InBox:
    """The shortest hop that stays in the box, exact (Eq. 13)."""

    def __call__(self, problem: Problem, x: Points, c: Scalars, g: Points, alpha: Number) -> Points:
        return problem.norm.onto_plane(x, g, alpha * c, problem.box)


@dataclass(frozen=True)
class Clipped:
    """The shortest hop without the box (Eq. 4), clipped to it afterwards, as other attacks do."""

    def __call__(self, problem: Problem, x: Points, c: Scalars, g: Points, alpha: Number) -> Points:
        unbounded = torch.full_like(problem.box.lo, torch.inf)
        return problem.box.clamp(problem.norm.onto_plane(x, g, alpha * c, Box(-unbounded, unbounded)))


@dataclass(frozen=True)
class ActiveSet:
    """The paper's loop over Eqs. 14 and 15, cut after some passes: coordinates at a wall stay, the others go on.

    The first author's implementation makes five passes. Enough of them end at ``InBox``'s point.
    """

    passes: int = 5

    def __call__(self, problem: Problem, x: Points, c: Scalars, g: Points, alpha: Number) -> Points:
        s, z = problem.norm.steepest(g), x
        free = torch.ones_like(x, dtype=torch.bool)
        for _ in range(self.passes):
            fixed = torch.where(free, 0, g * (z - x)).sum(1, keepdim=True)
            slope = torch.where(free, g * s, 0).sum(1, keepdim=True)
            hop = torch.where(slope > 0, (alpha * c + fixed) / slope, 0) * s
            z = torch.where(free, problem.box.clamp(x - hop), z)
            free = free & (x - hop >= problem.box.lo) & (x - hop <= problem.box.hi)
        return z


@dataclass(frozen=True)
class Slide:
    """First design: keep c, as far as its tangent plane tells. x⁺ = z + β (p − z), p the plane's nearest point to x₀.

    For ℓ2 this is Eq. 6 with ∇d = z − x₀, a = 1 and b = −a ∇cᵀ∇d / ∇cᵀs (Eq. 8 with its sign mended); p is sought
    inside the box.
    """

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        r = (g * (problem.x0 - z)).sum(1, keepdim=True)
        p = problem.norm.onto_plane(problem.x0, g, r, problem.box)
        return z + beta * (p - z)


@dataclass(frozen=True)
class Shrink:
    """Second design: shrink the perturbation by β, exactly. x⁺ = onto the ball of radius (1 − β)‖z − x₀‖ (z − βb s).

    ``b`` is in pixels or, with ``relative``, in units of ‖z − x₀‖, which makes the move free of scale.
    """

    b: float
    relative: bool = False

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        size = problem.norm.size(z - problem.x0)
        step = self.b * size if self.relative else self.b
        pushed = z - beta * step * problem.norm.steepest(g)
        return problem.norm.onto_ball(pushed, problem.x0, (1 - beta) * size)


@dataclass(frozen=True)
class ByNorm:
    """Each norm's own design, as in the paper: in ℓ∞ the second, with a share ``pace`` of β, elsewhere the first.

    In ℓ∞ the plane's nearest point is a corner of the ball, and jumps to another one where a slope changes its sign.
    """

    first: Slide = Slide()
    second: Shrink = Shrink(b=4.0, relative=True)
    pace: float = 0.25

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        if problem.norm.shrinks:
            return self.second(problem, z, g, self.pace * beta)
        return self.first(problem, z, g, beta)


@final
@dataclass(frozen=True)
class Pair(Step):
    """A restoration from x, then a projection: α, ε and β from the plan."""

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
class Closing(Step):
    """A restoration alone."""

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
    """Alternate restoration and projection moves, end on restorations (Alg. 1).

    ``moves`` counts both kinds, fewer where the budget does not pay for them; of every run the share
    ``closing`` / ``moves`` at its end are restorations. A target scan restores towards each of the ``candidates``
    highest other classes. As in the paper (``follow`` = 0), the first ``scans`` restorations are scans and keep the
    point nearest to x₀ (or to the iterate). With ``follow``, one scan at the start ranks the classes; the nearest of
    them are each followed for a share of the moves, and the nearest point that this finds takes the rest of them
    towards any class; and of several starts the first is x₀ itself. Samples for which all this finds nothing, because
    they are so far from the boundary that each slide undoes the hop, get up to ``rescue`` restorations more. With
    ``gain``, a sample is left alone once ten pairs of moves brought it less than that share of its distance: for a β
    that falls fast, as in the paper's presets; under the default one most is gained late, and fewer ``moves`` save
    more.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward a move; a scan 1 backward a candidate"
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
    projection: Projection = ByNorm()
    restoration: Restoration = InBox()
    restarts: int = 1
    radius: float = 0.0
    gain: float = 0.0

    def __post_init__(self) -> None:
        if (
            self.moves < 1
            or self.restarts < 1
            or min(self.closing, self.scans, self.follow, self.rescue) < 0
            or self.candidates < 1
            or not 0 <= self.gain < 1
        ):
            rules = "moves, restarts and candidates start at 1, the other numbers at 0; gain is below 1"
            raise ValueError(f"{self}: {rules}")

    def __call__(self, problem: Problem) -> None:
        share = problem.budget.remaining // self.restarts
        for restart in range(self.restarts):
            passes = share if self.gain else problem.budget.remaining // (self.restarts - restart)
            with problem.subproblem() as attempt:
                home = self.follow > 0 and restart == 0 < self.restarts - 1
                self.attempt(attempt, problem.x0 if home else self.start(attempt), passes)

    def attempt(self, problem: Problem, x: Points, passes: int) -> None:
        """From one start: follow the nearest classes, then go on from the nearest point found."""
        before = problem.budget.remaining
        near = self.nearest_classes(problem, x, min(self.follow, passes // (2 * SHORTEST) - 2))
        rivals = min(self.candidates, problem.evaluator.classes - 1)
        scans = 0 if self.follow or problem.targeted else min(self.scans, passes // (4 * rivals))
        # Where the budget does not pay for all moves, fewer are planned: a plan cut short has no closing moves.
        passes -= before - problem.budget.remaining + scans * (rivals - 1) + len(near) + 1
        moves = max(1, min(self.moves, passes // 2))
        share = moves // (len(near) + 2)
        for label in near:
            with problem.subproblem(targets=label) as towards:
                self.run(towards, x, share, scans=0)
        begin = torch.where(torch.isfinite(problem.incumbent.distance), problem.incumbent.points, x)
        self.run(problem, begin, moves - len(near) * share, scans)
        if self.rescue:
            with problem.masked(torch.isinf(problem.incumbent.distance[:, 0])) as lost:
                self.close(lost, x, self.rescue)

    def run(self, problem: Problem, x: Points, moves: int, scans: int) -> None:
        """Pairs of moves from x, then the closing ones."""
        problem.observer.mark("")
        closing = round(min(self.closing / self.moves, 0.5) * moves)
        pairs = (moves - closing) // 2
        for k in range(min(scans, pairs)):
            z = self.scan(problem, x, self.alpha(k, pairs), self.offset(k, pairs))
            x = project(problem, self.projection, z, self.beta(k, pairs))
        left = range(min(scans, pairs), pairs)
        plan = [(self.alpha(k, pairs), self.offset(k, pairs), self.beta(k, pairs)) for k in left]
        pair, closing = Pair(self.restoration, self.projection), moves - 2 * pairs
        if self.gain:
            self.while_it_gains(problem, x, pair, plan, closing)
        else:
            (x,) = problem.run(pair, plan, x)
            self.close(problem, x, closing)

    def while_it_gains(
        self, problem: Problem, x: Points, pair: Pair, plan: Sequence[Sequence[float]], closing: int
    ) -> None:
        """The pairs of the plan and the closing moves; whom ten pairs brought less than ``gain`` is left alone."""
        going = torch.arange(len(x))
        with suppress(BudgetExhausted):  # other samples may still pay for another start
            for first in range(0, len(plan), PATIENCE):
                block = plan[first : first + PATIENCE]
                with problem.subproblem(going, known=True) as part:
                    before = part.incumbent.distance
                    (x,) = part.run(pair, block, x)
                if len(block) == PATIENCE:
                    gained = (part.incumbent.distance <= (1 - self.gain) * before)[:, 0]
                    going, x = going[gained.cpu()], x[gained]
            with problem.subproblem(going, known=True) as part:
                self.close(part, x, closing)

    def close(self, problem: Problem, x: Points, moves: int) -> None:
        """Restorations alone, ever further past the boundary."""
        plan = [(self.closing_alpha, self.closing_offset(j, moves)) for j in range(moves)]
        (x,) = problem.run(Closing(self.restoration), plan, x)
        problem.value(x)

    def start(self, problem: Problem) -> Points:
        """x₀, or uniform within ``radius`` of it in every coordinate (Eq. 17)."""
        if self.radius == 0:
            return problem.x0
        return problem.box.clamp(problem.x0 + self.radius * (2 * problem.draws.uniform() - 1))

    def scan(self, problem: Problem, x: Points, alpha: float, offset: float) -> Points:
        """Towards each candidate class; the restored point that is nearest (Eq. 16)."""
        home = problem.x0 if self.scan_near == "input" else x
        looks = problem.class_constraints(x, most=self.candidates, offset=offset)
        hops, length = self.hops(problem, x, looks, alpha, home)
        near = length.argmin(0, keepdim=True)
        return hops.gather(0, near.expand(1, *x.shape))[0]

    def nearest_classes(self, problem: Problem, x: Points, number: int) -> list[Labels]:
        """The classes whose restored points are nearest to x₀, the nearest first. A targeted problem needs none."""
        if problem.targeted or number <= 0:
            return []
        looks = problem.class_constraints(x, most=min(self.candidates, problem.budget.remaining // SHORTEST))
        _, length = self.hops(problem, x, looks, 1.0, problem.x0)
        order = length[..., 0].argsort(dim=0, stable=True)
        return list(torch.stack([look.label for look in looks]).gather(0, order)[:number])

    def hops(
        self, problem: Problem, x: Points, looks: list[ClassConstraint], alpha: float, home: Points
    ) -> tuple[Tensor, Tensor]:
        """The restored point of each class and how far it is from home; infinitely, where the box ends before it."""
        hops, lengths = [], []
        for _, c, g in looks:
            z = self.restoration(problem, x, c, g, alpha)
            missing = ((g * (z - x)).sum(1, keepdim=True) + alpha * c).abs()
            rounding = 100 * torch.finfo(x.dtype).eps * problem.norm.dual(g) * problem.norm.size(x)
            missed = missing > 1e-3 * alpha * c.abs() + rounding
            hops.append(z)
            lengths.append(torch.where(missed, torch.inf, problem.norm.size(z - home)))
        return torch.stack(hops), torch.stack(lengths)
