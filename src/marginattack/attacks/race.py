r"""Race: several short descents to the boundary; the nearest point that they find is polished. The default attack.

A descent walks in a ball around x₀ that shrinks while x is adversarial and widens while it is not:

.. math::
    x^+ = P_{box} \, P_{\|x - x_0\| \le \rho} \left( x - \eta \rho \, s(v) \right), \quad
    \rho^+ = (1 \mp \gamma) \rho, \quad v_i = \operatorname{sign}(g_i) |g_i|^a, \; g = \nabla c(x)

A slide is both moves of MarginAttack from one gradient, r the exact restoration in the box (paper Eqs. 3, 13), p the
point of the same tangent plane that is nearest to x₀:

.. math:: x^+ = r + \beta (p - r)
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.attacks.legs import Descent, Leg, Slide, Start, best, walked
from marginattack.core.norms import L2, Norm
from marginattack.core.problem import Problem
from marginattack.core.schedules import Cosine, Fading, Schedule
from marginattack.core.types import Labels, Mask, Points

SMALL = 200  # passes, below which there is no room for every kind of descent
START = 600  # passes that each pay for one random start
LAST = (1e-7, 1e-6, 1e-5, 1e-4)  # how far past the boundary the last points aim, as shares of the distance


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
        end, norm = problem.left - passes, problem.norm
        coarsely = passes >= SMALL and problem.classifier.search != "float32"

        def left(rows: Mask) -> int:
            return max(problem.left_of(rows), default=end) - end

        with problem.quickly() if coarsely else nullcontext():
            linear = self.foretold(problem).cpu()
            racers = ((linear, self.tight(passes)), (~linear, self.loose(passes)))
            near: list[Labels] = []
            with problem.only(torch.stack([rows & (racer.classes > 0) for rows, racer in racers]).any(0)):
                near = self.nearest(problem, max(racer.classes for _, racer in racers), passes)
            plan = Racer.search if coarsely else Racer.legs
            lanes = [(rows, plan(racer, norm, left(rows), min(len(near), racer.classes))) for rows, racer in racers]
            walked(problem, lanes, near)
        if coarsely:  # the polish is all in full precision
            walked(problem, [(rows, racer.polish(norm, left(rows))) for rows, racer in racers], near)
        self.close(problem, best(problem))

    def tight(self, passes: int) -> "Racer":
        """Where the model is nearly linear."""
        racer = replace(self, descending=0.5 * self.descending, beta=Cosine(1.0, 0.01), average=0.0)
        sliding = replace(racer, beta=Cosine(1.0, 0.02))
        classes = self.classes(passes)
        if passes < SMALL:
            racer = replace(
                racer, scouting=0.0, descending=0.0, polishing=1.2 * self.polishing, warmup=2.5 * self.warmup
            )
            sliding, classes = replace(sliding, past=Fading(0.1, 0.02)), min(self.candidates, classes + 1)
        return Racer(racer, sliding, True, classes, passes)

    def loose(self, passes: int) -> "Racer":
        """Where it is not."""
        if passes >= SMALL:
            return Racer(self, self, False, self.classes(passes), passes)
        racer = replace(self, scouting=0.0, polishing=0.1 * self.polishing, warmup=2.5 * self.warmup)
        return Racer(racer, self, False, 0, passes)

    def classes(self, passes: int) -> int:
        """How many are followed."""
        return min(self.candidates, round(math.sqrt(math.sqrt(passes)) - 1.5))

    def descent(self, norm: Norm, steps: float, start: Start = "input") -> Leg:
        """A walk in a ball of its own radius."""
        number = max(1, int(steps))
        warm = [min(1.0, k / number / self.warmup) if self.warmup else 1.0 for k in range(number)]
        plan = tuple((self.step(k, number), self.pulse(k, number), warm[k]) for k in range(number))
        return Leg(Descent(norm, self.memory, self.growth), plan, start)

    def slide(self, steps: float, start: Start = "input") -> Leg:
        """Restoration and projection from one gradient, averaged with those before."""
        number = max(1, int(steps))
        plan = ((self.beta(k, number), self.past(k, number), self.average if k else 0.0) for k in range(number))
        return Leg(Slide(), tuple(plan), start)

    def close(self, problem: Problem, x: Points) -> None:
        """The foot of x₀ on the tangent plane at x, by ever more past it: exact where the boundary is flat."""
        c, g = problem.c(x)
        r = c + (g * (problem.x0 - x)).sum(1, keepdim=True)
        for past in LAST:
            aim = r + past * problem.norm.size(x - problem.x0) * problem.norm.dual(g)
            problem.value(problem.norm.onto_plane(problem.x0, g, aim, problem.lo, problem.hi))

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
        looks = problem.rivals(problem.x0, most=min(self.candidates, max(number, (passes - 4) // 16)))
        lengths = []
        for _, c, g in looks:
            z = problem.norm.onto_plane(problem.x0, g, c, problem.lo, problem.hi)
            missed = (g * (z - problem.x0)).sum(1) + c[:, 0] > 1e-3 * c[:, 0].abs()
            lengths.append(torch.where(missed, torch.inf, problem.norm.size(z - problem.x0)[:, 0]))
        order = torch.stack(lengths).argsort(dim=0, stable=True)
        return list(torch.stack([look.label for look in looks]).gather(0, order)[:number])


@dataclass(frozen=True)
class Racer:
    """How samples of a kind race: with these weights and schedules, those of the legs towards classes, which slide or
    descend, how many classes, and all passes.
    """

    race: Race
    follow: Race
    sliding: bool
    classes: int
    passes: int

    def legs(self, norm: Norm, left: int, near: int) -> list[Leg]:
        """The search, and the polish with all that it leaves."""
        legs = self.search(norm, left, near)
        return legs + self.polish(norm, left - 2 * sum(len(leg.plan) for leg in legs))

    def search(self, norm: Norm, left: int, near: int) -> list[Leg]:
        """Descents from x₀, towards the nearest classes and from random starts, sharing with the polish by weight."""
        race, starts = self.race, self.passes // START
        scouting = race.scouting if norm.scout else 0.0
        weights = scouting + race.descending + race.following * near + race.restarting * starts + race.polishing
        unit = left / 2 / (weights or 1)  # gradients for a weight of 1
        legs = []
        if norm.scout and scouting:
            legs += [race.descent(norm.scout, 0.45 * scouting * unit), race.slide(0.55 * scouting * unit, "best")]
        if race.descending:
            legs += [race.descent(norm, race.descending * unit)]
        follow = self.follow.slide if self.sliding else partial(self.follow.descent, norm)
        legs += [replace(follow(race.following * unit), towards=rank) for rank in range(near)]
        return legs + [race.descent(norm, race.restarting * unit, "around") for _ in range(starts)]

    def polish(self, norm: Norm, left: int) -> list[Leg]:
        """A slide and a descent from the best, with all that is left but for the closing.

        Where there was no descent and no class was reached by slides, it is made before.
        """
        slide, last = self._polish(norm, left)
        if not self.race.descending:
            descent = self.race.descent(norm, left / 2 / max(1.0, self.race.polishing))
            slide = replace(slide, instead=(descent, *self._polish(norm, left - 2 * len(descent.plan))))
        return [slide, last]

    def _polish(self, norm: Norm, left: int) -> list[Leg]:
        slide = self.race.slide(left / 4, "best")
        last = replace(self.race, step=self.race.last_step, pulse=self.race.last_pulse, warmup=0.0)
        return [slide, last.descent(norm, (left - 2 * len(slide.plan) - 2 - len(LAST)) / 2, "best")]
