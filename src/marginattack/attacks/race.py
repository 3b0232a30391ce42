r"""Race: several short descents to the boundary; the nearest point that they find is polished. The default attack.

A descent walks in a ball around x₀ that shrinks while x is adversarial and widens while it is not:

.. math::
    x^+ = P_{box} \, P_{\|x - x_0\| \le \rho} \left( x - \eta \rho \, s(v) \right), \quad
    \rho^+ = (1 \mp \gamma) \rho, \quad v_i = \operatorname{sign}(g_i) |g_i|^a, \; g = \nabla c(x)

A slide is both moves of MarginAttack from one gradient, r the exact restoration in the box (paper Eqs. 3, 13), p the
point of the same tangent plane that is nearest to x₀:

.. math:: x^+ = r + \beta (p - r)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias, final

import torch

from marginattack.attacks.attack import Attack
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
@dataclass(frozen=True, kw_only=True)
class Race(Attack):
    """Descents from x₀, towards the nearest classes and from random starts; then a slide and a descent from the best.

    Where no budget is given, ``passes`` are spent, else all of it up to ``most``. They are shared out by weight: a
    descent from x₀ has 1; ``scouting``, a descent in ℓ∞ and a slide from where it ends, has its own, and so have each
    class that is followed, each random start and the ``polishing``. Of the ``candidates``, the highest other classes,
    three are followed with 400 passes and five with 2,000; every 600 passes pay for a random start.

    ``step`` (η), ``pulse`` (γ), ``beta`` (β) and ``past`` (how far past the plane a slide aims, as a share of the
    distance) are schedules over one descent or slide; ``last_step`` and ``last_pulse`` are the polish's. ``warmup`` is
    the share of a descent in which a goes from 0 (the signs of the gradient) to 1 (the gradient), ``memory`` the weight
    of the gradients before. A ball in which nothing was found yet widens by ``growth`` a step.

    Where a hop to the tangent plane of x₀ leaves less than ``trust`` of c, the model is nearly linear as far as the
    boundary, and classes are followed by slides, elsewhere by descents. Below 200 passes there is no room for all this:
    there is no scouting, and where the model is not nearly linear nearly everything goes into one descent.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward a step; one scan at 1 backward a class"
    reference: ClassVar = "this project, docs/method.md"

    passes: int = 400
    most: int = 20_000
    candidates: int = 10
    scouting: float = 1.0
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
    trust: float = 0.25

    def __post_init__(self) -> None:
        if self.passes < 1 or self.candidates < 0:
            raise ValueError(f"{self}: passes start at 1, candidates at 0")

    def __call__(self, problem: Problem) -> None:
        passes = min(problem.left, self.most) if problem.bounded else self.passes
        classes, starts = round(passes**0.25 - 1.5), passes // START
        linear = self.foretold(problem)
        tight, loose, few = self, self, classes
        if passes < SMALL:
            tight = replace(self, scouting=0.0, polishing=0.5 * self.polishing, warmup=2.5 * self.warmup)
            loose, few = replace(tight, polishing=0.1 * self.polishing), 0
        sliding = replace(self, beta=Cosine(1.0, 0.02), average=0.0).slide
        with problem.take(linear.nonzero()[:, 0]) as part:
            part.solve(partial(tight.race, passes=passes - 3, follow=sliding, classes=classes, starts=starts))
        with problem.take((~linear).nonzero()[:, 0]) as part:
            part.solve(partial(loose.race, passes=passes - 3, follow=self.descend, classes=few, starts=starts))

    def race(self, problem: Problem, passes: int, follow: Move, classes: int, starts: int) -> None:
        """Every descent in turn, then the polish with all that is left."""
        x0, end = problem.x0, problem.left - passes
        near = self.nearest(problem, min(classes, self.candidates), passes)
        scout = problem.norm.scout
        scouting = self.scouting if scout else 0.0
        weights = scouting + 1 + self.following * len(near) + self.restarting * starts + self.polishing
        unit = (problem.left - end) / 2 / weights  # gradients for a weight of 1
        if scouting:
            self.descend(problem, x0, 0.45 * scouting * unit, norm=scout)
            self.slide(problem, self.best(problem), 0.55 * scouting * unit)
        self.descend(problem, x0, unit)
        for label in near:
            with problem.take(targets=label) as towards:
                follow(towards, x0, self.following * unit)
        for _ in range(starts):
            radius = LINF.size(self.best(problem) - x0)
            self.descend(problem, problem.clamp(x0 + radius * (2 * problem.uniform() - 1)), self.restarting * unit)
        self.slide(problem, self.best(problem), (problem.left - end) / 4)
        last = replace(self, step=self.last_step, pulse=self.last_pulse, warmup=0.0)
        last.descend(problem, self.best(problem), (problem.left - end - 2 - len(CLOSE)) / 2)
        self.close(problem, self.best(problem))

    def descend(self, problem: Problem, x: Points, steps: float, norm: Norm | None = None) -> Points:
        """A walk in a ball of its own radius ρ, which begins at ‖x − x₀‖ or, at x₀, with what the tangent plane tells.

        The length of a step is η times that of ρ in the norm of the norm's pace.
        """
        x0, norm, number = problem.x0, norm or problem.norm, max(1, int(steps))
        pace = norm.pace
        widest = norm.size(torch.maximum(problem.hi - x0, x0 - problem.lo)).clamp(max=1 / TINY)
        found = torch.zeros_like(x0[:, :1], dtype=torch.bool)
        v = torch.zeros_like(x0)
        radius = norm.size(x - x0)
        for k in range(number):
            c, g = problem.c(x)
            size, dual = norm.size(x - x0), norm.dual(g).clamp(min=TINY)
            if k == 0:
                radius = torch.where(radius > 0, radius, (c / dual).clamp(min=TINY))
            found = found | (c < 0)
            gamma = self.pulse(k, number)
            wider = 1 + torch.where(found, gamma, max(gamma, self.growth))
            radius = torch.where(c < 0, torch.minimum(radius, size) * (1 - gamma), radius * wider).minimum(widest)
            v = self.memory * v + g / dual
            u = v / v.abs().amax(1, keepdim=True).clamp(min=TINY)
            a = min(1.0, k / number / self.warmup) if self.warmup else 1.0
            ratio = torch.where(size > 0, pace.size(x - x0) / size.clamp(min=TINY), dual / pace.dual(g).clamp(min=TINY))
            s = pace.steepest(torch.sign(u) * u.abs() ** a)
            x = problem.clamp(norm.onto_ball(x - self.step(k, number) * ratio * radius * s, x0, radius))
        return x

    def slide(self, problem: Problem, x: Points, steps: float) -> Points:
        """Restoration and projection from one gradient, averaged with those before."""
        x0, norm, number = problem.x0, problem.norm, max(1, int(steps))
        v = torch.zeros_like(x0)
        for k in range(number):
            c, g = problem.c(x)
            length = L2.size(g).clamp(min=TINY)
            v = self.average * v + (1 - self.average) * g / length if k else g / length
            r = c / length + self.past(k, number) * norm.size(x - x0) * norm.dual(v)
            z = norm.onto_plane(x, v, r, problem.lo, problem.hi)
            p = norm.onto_plane(x0, v, (v * (x0 - z)).sum(1, keepdim=True), problem.lo, problem.hi)
            x = problem.clamp(z + self.beta(k, number) * (p - z))
        return x

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
        """Whether a hop to the tangent plane of x₀ reaches the boundary, nearly."""
        c, g = problem.c(problem.x0)
        z = problem.norm.onto_plane(problem.x0, g, c, problem.lo, problem.hi)
        return (problem.value(z).abs() < self.trust * c)[:, 0]

    def nearest(self, problem: Problem, number: int, passes: int) -> list[Labels]:
        """The classes whose tangent planes at x₀ are nearest, the nearest first. A targeted problem needs none."""
        if problem.targeted or number < 1:
            return []
        looks = problem.rivals(problem.x0, most=min(self.candidates, max(number, passes // 20)))
        lengths = []
        for _, c, g in looks:
            z = problem.norm.onto_plane(problem.x0, g, c, problem.lo, problem.hi)
            missed = (g * (z - problem.x0)).sum(1) + c[:, 0] > 1e-3 * c[:, 0].abs()
            lengths.append(torch.where(missed, torch.inf, problem.norm.size(z - problem.x0)[:, 0]))
        order = torch.stack(lengths).argsort(dim=0, stable=True)
        return list(torch.stack([look.label for look in looks]).gather(0, order)[:number])
