"""Legs: what a race is made of, and how samples that are in different legs share each look at the model.

On a GPU a batch is looked at as a whole, whatever leg a sample is in: two looks at half of the batch cost more than one
at all of it, and a graph is captured for one size. Elsewhere each lane, the samples that have the same legs to go, is
looked at by itself. Who is in which lane is known on the host: from leg to leg nobody waits for the GPU, which has the
next steps to do before it is through with the last; but once where some may take other legs instead.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor

from marginattack.core.goals import towards
from marginattack.core.norms import L2, LINF, Norm
from marginattack.core.problem import APART, Problem
from marginattack.core.types import Labels, Mask, Points
from marginattack.execution.graphs import State, Step, onto

LANES = 4  # that walk abreast at most: two, and those of each that leave it
WIDTH = 4  # of a lane's part of a plan: which kind of move, and three numbers for it
EVEN = 4  # passes by which samples that go side by side may differ in what they have left
TINY = 1e-30

Start: TypeAlias = Literal["input", "best", "around"]


class Move(Step):
    """A step from one look at x, its state's first tensor; v, ρ, whether something was found, and ρ's bound follow."""

    looks: ClassVar = 1

    def __call__(self, problem: Problem, now: Sequence[Tensor], *state: Tensor) -> State:
        return self.moved(problem, now, *problem.c(state[0]), *state)

    @abstractmethod
    def begun(self, problem: Problem, x: Points) -> State:
        """The state of those who start at x."""

    @abstractmethod
    def moved(self, problem: Problem, now: Sequence[Tensor], c: Tensor, g: Tensor, *state: Tensor) -> State:
        """The next state, when c and g were seen at x."""


@final
@dataclass(frozen=True)
class Descent(Move):
    """A step of η in a ball of radius ρ, measured in the norm of the norm's pace; η, γ and a from the plan.

    ``memory`` is the weight of the gradients before. A ball in which nothing was found yet widens by ``growth``. ρ
    begins at ‖x − x₀‖ or, at x₀, with what the tangent plane tells.
    """

    norm: Norm
    memory: float
    growth: float

    def begun(self, problem: Problem, x: Points) -> State:
        x0 = problem.x0
        widest = self.norm.size(torch.maximum(problem.hi - x0, x0 - problem.lo)).clamp(max=1 / TINY)
        return x, torch.zeros_like(x), self.norm.size(x - x0), torch.zeros_like(widest), widest

    def moved(self, problem: Problem, now: Sequence[Tensor], c: Tensor, g: Tensor, *state: Tensor) -> State:
        (eta, gamma, a), (x, v, radius, found, widest) = now, state
        x0, norm, pace = problem.x0, self.norm, self.norm.pace
        if (kernels := norm.kernels(x)) is not None:
            descended: State = kernels.descended(
                state, now, c, g, x0, problem.lo, problem.hi, memory=self.memory, growth=self.growth
            )
            return descended
        size, dual = norm.size(x - x0), norm.dual(g).clamp(min=TINY)
        radius = torch.where(radius > 0, radius, (c / dual).clamp(min=TINY))
        found = torch.maximum(found, (c < 0).to(found))
        wider = 1 + torch.where(found > 0, gamma, gamma.clamp(min=self.growth))
        radius = torch.where(c < 0, torch.minimum(radius, size) * (1 - gamma), radius * wider).minimum(widest)
        v = self.memory * v + g / dual
        u = v / LINF.size(v).clamp(min=TINY)
        s = pace.steepest(torch.sign(u) * u.abs() ** a)
        if pace is not norm:
            ratio = pace.size(x - x0) / size.clamp(min=TINY)
            s = torch.where(size > 0, ratio, dual / pace.dual(g).clamp(min=TINY)) * s
        x = problem.clamp(norm.onto_ball(x - eta * radius * s, x0, radius))
        return x, v, radius, found, widest


@final
@dataclass(frozen=True)
class Slide(Move):
    """Restoration r and projection p from one gradient, averaged with those before: x⁺ = r + β (p − r).

    β, how far past the plane r aims as a share of the distance, and the weight of the gradients before come from the
    plan.
    """

    def begun(self, problem: Problem, x: Points) -> State:
        nothing = torch.zeros_like(x[:, :1])
        return x, torch.zeros_like(x), nothing, nothing, nothing

    def moved(self, problem: Problem, now: Sequence[Tensor], c: Tensor, g: Tensor, *state: Tensor) -> State:
        (beta, past, before), (x, v, *rest) = now, state
        x0, norm = problem.x0, problem.norm
        length = L2.size(g).clamp(min=TINY)
        v = before * v + (1 - before) * g / length
        r = c / length + past * norm.size(x - x0) * norm.dual(v)
        z = norm.onto_plane(x, v, r, problem.lo, problem.hi)
        p = norm.onto_plane(x0, v, (v * (x0 - z)).sum(1, keepdim=True), problem.lo, problem.hi)
        return problem.clamp(z + beta * (p - z)), v, *rest


@final
@dataclass(frozen=True)
class Abreast(Step):
    """A step of every lane at once: one look, then each sample's own kind of move. Its lane is its state's last."""

    kinds: tuple[Move, ...]
    looks: ClassVar = 1

    def __call__(self, problem: Problem, now: Sequence[Tensor], *state: Tensor) -> State:
        *own, lane = state
        c, g = problem.c(own[0])
        kind, *numbers = torch.cat(list(now)).view(LANES, WIDTH)[lane[:, 0]].split(1, dim=1)
        after = self.kinds[0].moved(problem, numbers, c, g, *own)
        for other in range(1, len(self.kinds)):
            chosen = self.kinds[other].moved(problem, numbers, c, g, *own)
            after = _where(kind == other, chosen, after)
        return *after, lane


@dataclass(frozen=True)
class Leg:
    """Some steps of one kind: from x₀, from the nearest point found so far, or from around x₀, as far as that is.

    ``towards`` is the rank of the class that it is towards, of the nearest; without, any other will do. Those who have
    found nothing so far take the legs ``instead``, if there are any, of this one and all that follow.
    """

    move: Move
    plan: tuple[tuple[float, float, float], ...]
    start: Start = "input"
    towards: int | None = None
    instead: "tuple[Leg, ...]" = ()


Lane: TypeAlias = tuple[Mask, Sequence[Leg]]  # which samples, known on the host, and their legs


def walked(problem: Problem, lanes: Sequence[Lane], near: Sequence[Labels]) -> None:
    """The legs of all samples, side by side where that is possible and all of a lane have as much left."""
    left = [problem.left_of(rows) for rows, _ in lanes]
    if problem.whole and all(max(each, default=0) - min(each, default=0) < EVEN for each in left):
        abreast(problem, lanes, near)
        return
    draws = problem.draws
    for rows, legs in lanes:
        problem.draws = draws  # those of one lane do not depend on another
        with problem.take(rows.nonzero()[:, 0], found=True) as part:
            part.solve(partial(in_turn, legs=legs, near=[labels[rows] for labels in near]))
    problem.draws = draws + APART


def in_turn(problem: Problem, legs: Sequence[Leg], near: Sequence[Labels]) -> None:
    """All legs, one after the other, of samples that have the same ones to go."""
    for number, leg in enumerate(legs, start=1):
        missed = torch.isinf(problem.distance[:, 0])
        if leg.instead and bool(missed.any()):
            draws = problem.draws
            with problem.only(missed):
                in_turn(problem, leg.instead, near)
            problem.draws = draws  # those of one sample do not depend on what another does
            with problem.only(~missed):
                in_turn(problem, [replace(leg, instead=()), *legs[number:]], near)
            return
        _walk(problem, leg, near)


def _walk(problem: Problem, leg: Leg, near: Sequence[Labels]) -> None:
    x = start(problem, leg)
    if leg.towards is None:
        problem.walk(leg.move, leg.plan, *leg.move.begun(problem, x))
        return
    with problem.take(targets=near[leg.towards]) as part:
        part.walk(leg.move, leg.plan, *leg.move.begun(part, x))


class _Walkers:
    """The samples of a lane: their legs to go, and how many steps of the first they have made."""

    def __init__(self, problem: Problem, rows: Mask, legs: Sequence[Leg], draws: int) -> None:
        self.rows, self.legs, self.done, self.draws = rows, list(legs), 0, draws
        self.there = onto(rows[:, None], problem.x0)

    def parted(self, problem: Problem) -> "list[_Walkers]":
        """Those who take other legs instead, as a lane of their own; the rest stay."""
        if not (instead := self.legs[0].instead):
            return []
        missed = self.rows & torch.isinf(problem.distance[:, 0]).cpu()
        if not bool(missed.any()):
            return []
        self.rows = self.rows & ~missed
        self.there = onto(self.rows[:, None], problem.x0)
        return [_Walkers(problem, missed, instead, self.draws)]

    def begun(self, problem: Problem, near: Sequence[Labels], aim: Tensor, state: State) -> State:
        """Everybody's state, these at the start of their first leg, as far as they can pay for it."""
        afford = min(problem.left_of(self.rows), default=0) // 2
        if not self.legs or not afford:
            self.legs = []
            problem.aim = torch.where(self.there, 0, problem.aim)  # whoever waits has nothing to cross
            return state
        leg = self.legs[0]
        self.legs[0] = replace(leg, plan=leg.plan[:afford])
        goal = aim if leg.towards is None else towards(near[leg.towards])
        problem.aim = torch.where(self.there, goal, problem.aim)
        problem.draws = self.draws
        x = start(problem, leg)
        self.draws = problem.draws
        return _where(self.there, leg.move.begun(problem, x), state)

    def went(self, steps: int) -> None:
        """So many steps further."""
        self.done += steps
        if self.done == len(self.legs[0].plan):
            self.legs, self.done = self.legs[1:], 0


def abreast(problem: Problem, lanes: Sequence[Lane], near: Sequence[Labels]) -> None:
    """All legs of all lanes, side by side. Who has none left waits, and is not charged."""
    aim, draws, state = problem.aim, problem.draws, Slide().begun(problem, problem.x0)
    everybody = [_Walkers(problem, rows, legs, draws) for rows, legs in lanes]
    try:
        while walking := [walkers for walkers in everybody if walkers.legs]:
            everybody += [others for walkers in walking if not walkers.done for others in walkers.parted(problem)]
            for walkers in everybody:
                if not walkers.done:
                    state = walkers.begun(problem, near, aim, state)
            walking = [walkers for walkers in everybody if walkers.legs]
            if walking:
                state = _together(problem, everybody, walking, state)
    finally:
        problem.aim, problem.draws = aim, draws + APART


def _together(problem: Problem, everybody: list[_Walkers], walking: list[_Walkers], state: State) -> State:
    """As many steps as there are until somebody's leg ends."""
    kinds = sorted({walkers.legs[0].move for walkers in walking}, key=repr)
    steps = min(len(walkers.legs[0].plan) - walkers.done for walkers in walking)
    plan = [[0.0] * LANES * WIDTH for _ in range(steps)]
    lane = torch.zeros(len(problem.x0), 1, dtype=torch.int64)
    for number, walkers in enumerate(everybody):
        lane += number * walkers.rows[:, None]
        if walkers.legs:
            leg = walkers.legs[0]
            for row, numbers in zip(plan, leg.plan[walkers.done :], strict=False):
                row[number * WIDTH : (number + 1) * WIDTH] = (float(kinds.index(leg.move)), *numbers)
    paying = torch.stack([walkers.rows for walkers in walking]).any(0)
    after = problem.walk(Abreast(tuple(kinds)), plan, *state, onto(lane, problem.x0), paying=paying)
    for walkers in walking:
        walkers.went(steps)
    return after[:-1]


def start(problem: Problem, leg: Leg) -> Points:
    """Where a leg begins."""
    if leg.start == "input":
        return problem.x0
    x = best(problem)
    if leg.start == "best":
        return x
    return problem.clamp(problem.x0 + LINF.size(x - problem.x0) * (2 * problem.uniform() - 1))


def best(problem: Problem) -> Points:
    """The nearest adversarial point so far; a random point of the box where there is none."""
    width = torch.where(torch.isfinite(problem.hi - problem.lo), problem.hi - problem.lo, 0)
    corner = torch.where(width > 0, problem.lo, problem.x0)
    return torch.where(torch.isfinite(problem.distance), problem.best, corner + width * problem.uniform())


def _where(rows: Tensor, these: State, those: State) -> State:
    """State by state; what is the same tensor on both sides stays it."""
    return tuple(a if a is b else torch.where(rows, a, b) for a, b in zip(these, those, strict=True))
