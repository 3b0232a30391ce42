r"""Race: several short descents to the boundary; the nearest point that they find is polished. The default attack.

A descent walks in a ball around x₀ that shrinks while x is adversarial and widens while it is not:

.. math::
    x^+ = P_{box} \, P_{\|x - x_0\| \le \rho} \left( x - \eta \rho \, s(v) \right), \quad
    \rho^+ = (1 \mp \gamma) \rho, \quad v_i = \operatorname{sign}(g_i) |g_i|^a, \; g = \nabla c(x)

A slide is both moves of MarginAttack from one gradient, r the exact restoration in the box (paper Eqs. 3, 13), p the
point of the same tangent plane that is nearest to x₀:

.. math:: x^+ = r + \beta (p - r)
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.graphs import Step
from marginattack.norms import L2, LINF, Norm
from marginattack.problem import Problem
from marginattack.schedules import Cosine, Fading, Schedule
from marginattack.shapes import Labels, Mask, Points

SMALL = 200  # passes, below which there is no room for every kind of descent
START = 600  # passes that each pay for one random start
CLOSE = (1e-7, 1e-6, 1e-5, 1e-4)  # how far past the boundary the last points aim, as shares of the distance
TINY = 1e-30


# (problem, x, steps) ↦ where it ends
Move: TypeAlias = Callable[[Problem, Points, float], Points]


@final
@dataclass(frozen=True)
class Descent(Step):
    """A step of η in a ball of radius ρ, measured in the norm of the norm's pace; η, γ and a from the plan.

    ``memory`` is the weight of the gradients before. A ball in which nothing was found yet widens by ``growth``.
    """

    norm: Norm
    memory: float
    growth: float
    looks: ClassVar = 1

    def __call__(self, problem: Problem, now: Sequence[Tensor], *state: Tensor) -> tuple[Tensor, ...]:
        (eta, gamma, a), (x, v, radius, found, widest) = now, state
        x0, norm, pace = problem.x0, self.norm, self.norm.pace
        c, g = problem.c(x)
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
class Slide(Step):
    """Restoration r and projection p from one gradient, averaged with those before: x⁺ = r + β (p − r).

    β, how far past the plane r aims as a share of the distance, and the weight of the gradients before come from the
    plan.
    """

    looks: ClassVar = 1

    def __call__(self, problem: Problem, now: Sequence[Tensor], *state: Tensor) -> tuple[Tensor, ...]:
        (beta, past, before), (x, v) = now, state
        x0, norm = problem.x0, problem.norm
        c, g = problem.c(x)
        length = L2.size(g).clamp(min=TINY)
        v = before * v + (1 - before) * g / length
        r = c / length + past * norm.size(x - x0) * norm.dual(v)
        z = norm.onto_plane(x, v, r, problem.lo, problem.hi)
        p = norm.onto_plane(x0, v, (v * (x0 - z)).sum(1, keepdim=True), problem.lo, problem.hi)
        return problem.clamp(z + beta * (p - z)), v


@final
@dataclass(frozen=True, kw_only=True)
class Race(Attack):
    """Descents from x₀, towards the nearest classes and from random starts; then a slide and a descent from the best.

    Where no budget is given, ``passes`` are spent, else all of it up to ``most``. They are shared out by weight:
    ``descending`` is that of the descent from x₀; ``scouting``, a descent in ℓ∞ and a slide from where it ends, has its
    own, and so have each class that is followed, each random start and the ``polishing``. Of the ``candidates``, the
    highest other classes, three are followed with 400 passes and five with 2,000; every 600 passes pay for a random
    start.

    ``step`` (η), ``pulse`` (γ), ``beta`` (β) and ``past`` (how far past the plane a slide aims, as a share of the
    distance) are schedules over one descent or slide; ``last_step`` and ``last_pulse`` are the polish's. ``warmup`` is
    the share of a descent in which a goes from 0 (the signs of the gradient) to 1 (the gradient), ``memory`` the weight
    of the gradients before. A ball in which nothing was found yet widens by ``growth`` a step.

    Where a hop to the tangent plane of x₀ leaves less than ``trust`` of c, and a gradient whose cosine with that at x₀
    is above 1 − ``trust``, the model is nearly linear as far as the boundary: classes are followed by slides, the
    descent has half its weight, and the slide of the polish begins at β = 1. Elsewhere classes are followed by
    descents. Below 200 passes there is no room for all this, nor for scouting: where the model is nearly linear, one
    class more is followed instead of the descent; elsewhere nearly everything goes into the descent.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward a step; one scan at 1 backward a class"
    reference: ClassVar = "this project, docs/method.md"

    passes: int = 400
    most: int = 20_000
    candidates: int = 10
    scouting: float = 1.0
    descending: float = 1.0
    following: float = 0.4
    restarting: float = 0.5
    polishing: float = 1.0
    step: Schedule = Cosine(3.0, 0.02)
    pulse: Schedule = Cosine(0.25, 0.002)
    last_step: Schedule = Cosine(0.3, 0.01)
    last_pulse: Schedule = Cosine(0.05, 0.001)
    growth: float = 0.5
    warmup: float = 0.25
    memory: float = 0.25
    beta: Schedule = Cosine(0.3, 0.01)
    past: Schedule = Fading(0.05, 0.001)
    average: float = 0.5
    trust: float = 0.5

    def __post_init__(self) -> None:
        if self.passes < 1 or self.candidates < 0:
            raise ValueError(f"{self}: passes start at 1, candidates at 0")

    def __call__(self, problem: Problem) -> None:
        passes = min(problem.left, self.most) if problem.bounded else self.passes
        classes, starts = round(passes**0.25 - 1.5), passes // START
        linear = self.foretold(problem)
        tight = replace(self, descending=0.5 * self.descending, beta=Cosine(1.0, 0.01), average=0.0)
        loose, past, many, few = self, self.past, classes, classes
        if passes < SMALL:
            loose = replace(self, scouting=0.0, polishing=0.1 * self.polishing, warmup=2.5 * self.warmup)
            tight = replace(tight, scouting=0.0, descending=0.0, polishing=1.2 * self.polishing, warmup=loose.warmup)
            past, many, few = Fading(0.1, 0.02), classes + 1, 0
        sliding = replace(tight, beta=Cosine(1.0, 0.02), past=past).slide
        with problem.take(linear.nonzero()[:, 0]) as part:
            part.solve(partial(tight.race, passes=passes - 4, follow=sliding, classes=many, starts=starts))
        with problem.take((~linear).nonzero()[:, 0]) as part:
            part.solve(partial(loose.race, passes=passes - 4, follow=self.descend, classes=few, starts=starts))

    def race(self, problem: Problem, passes: int, follow: Move, classes: int, starts: int) -> None:
        """Every descent in turn, then the polish with all that is left."""
        x0, end = problem.x0, problem.left - passes
        near = self.nearest(problem, min(classes, self.candidates), passes)
        scout = problem.norm.scout
        scouting = self.scouting if scout else 0.0
        weights = scouting + self.descending + self.following * len(near) + self.restarting * starts + self.polishing
        unit = (problem.left - end) / 2 / weights  # gradients for a weight of 1
        with problem.quickly() if passes >= SMALL else nullcontext():
            if scouting:
                self.descend(problem, x0, 0.45 * scouting * unit, norm=scout)
                self.slide(problem, self.best(problem), 0.55 * scouting * unit)
            if self.descending:
                self.descend(problem, x0, self.descending * unit)
            for label in near:
                with problem.take(targets=label) as towards:
                    follow(towards, x0, self.following * unit)
            if not self.descending:  # where the classes were too far for slides, it is made after all
                with problem.only(torch.isinf(problem.distance[:, 0])):
                    self.descend(problem, x0, unit)
            for _ in range(starts):
                radius = LINF.size(self.best(problem) - x0)
                self.descend(problem, problem.clamp(x0 + radius * (2 * problem.uniform() - 1)), self.restarting * unit)
        self.slide(problem, self.best(problem), (problem.left - end) / 4)
        last = replace(self, step=self.last_step, pulse=self.last_pulse, warmup=0.0)
        last.descend(problem, self.best(problem), (problem.left - end - 2 - len(CLOSE)) / 2)
        self.close(problem, self.best(problem))

    def descend(self, problem: Problem, x: Points, steps: float, norm: Norm | None = None) -> Points:
        """A walk in a ball of its own radius, which begins at ‖x − x₀‖ or, at x₀, with what the tangent plane tells."""
        x0, norm, number = problem.x0, norm or problem.norm, max(1, int(steps))
        widest = norm.size(torch.maximum(problem.hi - x0, x0 - problem.lo)).clamp(max=1 / TINY)
        start = (x, torch.zeros_like(x), norm.size(x - x0), torch.zeros_like(widest), widest)
        warm = [min(1.0, k / number / self.warmup) if self.warmup else 1.0 for k in range(number)]
        plan = [(self.step(k, number), self.pulse(k, number), warm[k]) for k in range(number)]
        return problem.walk(Descent(norm, self.memory, self.growth), plan, *start)[0]

    def slide(self, problem: Problem, x: Points, steps: float) -> Points:
        """Restoration and projection from one gradient, averaged with those before."""
        number = max(1, int(steps))
        plan = [(self.beta(k, number), self.past(k, number), self.average if k else 0.0) for k in range(number)]
        return problem.walk(Slide(), plan, x, torch.zeros_like(x))[0]

    def close(self, problem: Problem, x: Points) -> None:
        """The foot of x₀ on the tangent plane at x, by ever more past it: exact where the boundary is flat."""
        c, g = problem.c(x)
        r = c + (g * (problem.x0 - x)).sum(1, keepdim=True)
        for past in CLOSE:
            aim = r + past * problem.norm.size(x - problem.x0) * problem.norm.dual(g)
            problem.value(problem.norm.onto_plane(problem.x0, g, aim, problem.lo, problem.hi))

    def best(self, problem: Problem) -> Points:
        """The nearest adversarial point so far; a random point of the box where there is none."""
        width = torch.where(torch.isfinite(problem.hi - problem.lo), problem.hi - problem.lo, 0)
        corner = torch.where(width > 0, problem.lo, problem.x0)
        return torch.where(torch.isfinite(problem.distance), problem.best, corner + width * problem.uniform())

    def foretold(self, problem: Problem) -> Mask:
        """Whether a hop to the tangent plane of x₀ nearly reaches the boundary, and the gradient hardly turns."""
        c, g = problem.c(problem.x0)
        z = problem.norm.onto_plane(problem.x0, g, c, problem.lo, problem.hi)
        if problem.left < 2:
            problem.value(z)
        there, h = problem.c(z)
        along = (L2.steepest(g) * L2.steepest(h)).sum(1, keepdim=True)
        return ((there.abs() < self.trust * c) & (along > 1 - self.trust))[:, 0]

    def nearest(self, problem: Problem, number: int, passes: int) -> list[Labels]:
        """The classes whose tangent planes at x₀ are nearest, the nearest first. A targeted problem needs none."""
        if problem.targeted or number < 1:
            return []
        looks = problem.rivals(problem.x0, most=min(self.candidates, max(number, passes // 16)))
        lengths = []
        for _, c, g in looks:
            z = problem.norm.onto_plane(problem.x0, g, c, problem.lo, problem.hi)
            missed = (g * (z - problem.x0)).sum(1) + c[:, 0] > 1e-3 * c[:, 0].abs()
            lengths.append(torch.where(missed, torch.inf, problem.norm.size(z - problem.x0)[:, 0]))
        order = torch.stack(lengths).argsort(dim=0, stable=True)
        return list(torch.stack([look.label for look in looks]).gather(0, order)[:number])
