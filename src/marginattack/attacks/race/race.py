"""Race, the default attack: several short searches for the boundary; the nearest point that they find is polished."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack, keeps_margins
from marginattack.attacks.race.phases import (
    CLOSING,
    CLOSING_PASSES,
    CURVED,
    MASKED,
    MASKED_SPARSE,
    NEAR_LINEAR,
    PASSES_PER_START,
    SHORT,
    SPARSE,
    PlannedPhase,
    Profile,
    Table,
    kind_of,
    plan_all,
    truncate,
)
from marginattack.attacks.race.scheduling import incumbent_or_random, run_groups, split_last
from marginattack.core.norms import L2, LINF, Norm, as_norm
from marginattack.core.problem import Problem
from marginattack.core.types import Labels, Mask, Points
from marginattack.errors import InputError

PERPENDICULAR = 0.3  # a cosine below which gradients tell nothing about each other; in ℓ0 a lower one
PERPENDICULAR_SPARSE = 0.2
BENT = 0.5  # one below which, in ℓ1 with few passes, a step that hardly lowers c tells that gradients mislead
TURNED = 0.4  # the same in ℓ0; and one above which a short plan in ℓ1 takes slides if the step does not overshoot
STRAIGHT = 0.8  # one above which the gradient at x₀ is trusted though it points out of the box
BLOCKED = 0.5  # the way to the tangent plane without the box, over that inside it: below, the gradient points outside
WALLED = 0.35  # stricter than BLOCKED, for few passes in ℓ0 and ℓ1: their steps change few coordinates by much
NEAR, FAR = 0.1, 0.05  # shares of the way to the farthest point of the box: of each coordinate, and in ℓ2
OVERSHOT = 0.4  # how far below zero c may be after a near-linear sample's step, as a share of trust · c(x₀)
PAST = 1e-6  # past a tangent plane, so that rounding does not decide whether a linear model is crossed
PROFILE_PASSES = 4  # two gradients tell a sample's profile
EXACT_SHARE = 1 / 16  # of the budget: after a search in low precision, the end of the polish that is in float32
MOST_EXACT = 40  # passes of it


@final
@dataclass(frozen=True, kw_only=True)
class Race(Attack):
    """Searches from x₀, towards the nearest classes and from other starts; then a polish of the nearest point found.

    The phases are data: the tables in ``attacks/race/phases.py``, one per profile and budget class;
    ``print(Race().plan(norm="l2", budget=400))`` shows them with their passes. A sample's profile is near-linear
    where a step to the tangent plane of x₀ leaves less than ``trust`` of c, hardly overshoots, and ends at a gradient
    whose cosine with that at x₀ is above 1 − ``trust``, or where that plane is next to x₀; masked where it is far and
    the gradients are nearly perpendicular, or the gradient points out of the box; else curved. Where the norm counts
    coordinates (ℓ0) there are two profiles of its own, unless a bound is infinite. docs/method.md describes each phase.

    Args:
        passes: What is spent where no budget is given; a budget is spent as a whole.
        candidates: How many of the highest other classes may be ranked and followed.
        trust: How far the tangent plane may be off for a sample to count as near-linear; 0: none does.
        near_linear: The phases of near-linear samples.
        curved: The phases of the others.
        masked: The phases of samples whose gradients mislead.
        sparse: The phases in ℓ0.
        masked_sparse: The phases in ℓ0 of samples whose gradients mislead.

    Raises:
        InputError: ``passes`` or ``candidates`` is out of range.

    Example:
        >>> import marginattack as ma
        >>> from marginattack.sources.data import samples
        >>> from marginattack.sources.networks import zoo
        >>> images, labels = samples("mnist", 2)
        >>> margins = ma.measure(zoo("mnist-cnn"), images, labels, "l2", attack=ma.Race(candidates=3), budget=50)
        >>> margins.success.tolist()
        [True, True]
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    any_norm: ClassVar = True
    cost: ClassVar = "1 forward + 1 backward per step; one scan at 1 backward per class"
    reference: ClassVar = "this project, docs/method.md"

    passes: int = 400
    candidates: int = 10
    trust: float = 0.5
    near_linear: Profile = NEAR_LINEAR
    curved: Profile = CURVED
    masked: Profile = MASKED
    sparse: Profile = SPARSE
    masked_sparse: Profile = MASKED_SPARSE

    def __post_init__(self) -> None:
        for name, least in (("passes", 1), ("candidates", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}: it must be at least {least}")

    def __call__(self, problem: Problem) -> None:
        passes = problem.budget.remaining if problem.budget.limited else self.passes
        unspent, norm = problem.budget.remaining - passes, problem.norm
        low_precision = problem.has_low_precision

        def left(rows: Mask) -> int:
            return max(problem.budget.remaining_of(rows), default=unspent) - unspent

        with problem.for_search() if low_precision else nullcontext(problem) as search:
            groups = [(rows, profile.table(passes)) for rows, profile in self.profiles(search, passes)]
            followed = [self.classes_followed(table, norm, passes) for _, table in groups]
            classes: list[Labels] = []
            scanned = torch.stack([rows & (number > 0) for (rows, _), number in zip(groups, followed, strict=True)])
            with search.masked(scanned.any(0)) as part:
                classes = self.nearest_classes(part, max(followed), passes)
            starts = passes // PASSES_PER_START
            planned = [
                (rows, plan_all(table, norm, left(rows), min(len(classes), number), starts))
                for (rows, table), number in zip(groups, followed, strict=True)
            ]
            exact = min(MOST_EXACT, int(passes * EXACT_SHARE)) if low_precision else 0
            run_groups(search, [(rows, split_last(phases, exact)[0]) for rows, phases in planned], classes)
        if low_precision:  # the last steps are in full precision

            def last_steps(rows: Mask, phases: list[PlannedPhase]) -> list[PlannedPhase]:
                least = min(problem.budget.remaining_of(rows), default=unspent) - unspent - CLOSING_PASSES
                return split_last(phases, min(exact, least))[1]

            run_groups(problem, [(rows, last_steps(rows, phases)) for rows, phases in planned], classes)
        self.close(problem, incumbent_or_random(problem, problem.draws))

    def low_precision(self, norm: Norm, budget: int | None) -> bool:
        """With as many passes as were measured, in norms whose margins rounding hardly changes."""
        return keeps_margins(norm, budget or self.passes)

    def without(self, *phases: str) -> "Race":
        """The attack without the search phases of these names ("scout", "descend", "target", "restart", "propose", …).

        Args:
            phases: Names of phases, as in the tables.

        Returns:
            The same attack with shorter tables.

        Example:
            >>> import marginattack as ma
            >>> ma.Race().without("scout").curved
            Profile('CURVED without scout', ...
        """
        names = ("near_linear", "curved", "masked", "sparse", "masked_sparse")
        return replace(self, **{name: getattr(self, name).without(*phases) for name in names})

    def plan(self, norm: Norm | str = "l2", budget: int | None = None, classes: int = 10) -> "RacePlan":
        """The phases that an untargeted attack runs, with their steps and passes.

        Args:
            norm: The norm.
            budget: Forwards + backwards per sample; ``passes`` unless stated.
            classes: How many classes the model has.

        Returns:
            The plan, which prints as a table.

        Example:
            >>> import marginattack as ma
            >>> print(ma.Race().plan(norm="linf", budget=100))  # doctest: +ELLIPSIS
            Race, linf, 100 passes
            ...
        """
        norm, passes = as_norm(norm), self.passes if budget is None else budget
        phases: dict[str, list[PlannedPhase]] = {}
        scans: dict[str, int] = {}
        dense, sparse = (self.near_linear, self.curved, self.masked), (self.sparse, self.masked_sparse)
        for profile in sparse if norm.counts else dense:
            table = profile.table(passes)
            number = min(self.classes_followed(table, norm, passes), classes - 1)
            scans[profile.name] = 1 + min(self.classes_scanned(number, passes), classes - 1) if number else 0
            left = passes - PROFILE_PASSES - scans[profile.name]
            phases[profile.name] = truncate(plan_all(table, norm, left, number, passes // PASSES_PER_START), left)
        return RacePlan(norm.name, passes, scans, phases)

    def profiles(self, problem: Problem, passes: int) -> list[tuple[Mask, Profile]]:
        """The samples of each profile, on the host."""
        near_linear, masked = (rows.cpu() for rows in self.classify(problem, passes))
        if problem.norm.counts and bool(torch.isfinite(problem.box.hi - problem.box.lo).all()):
            return [(~masked, self.sparse), (masked, self.masked_sparse)]
        curved = ~(near_linear | masked)
        return [(near_linear, self.near_linear), (curved, self.curved), (masked, self.masked)]

    def classes_followed(self, table: Table, norm: Norm, passes: int) -> int:
        """How many classes are followed: 3 with 400 passes, 5 with 2,000; none where no phase of the table does."""
        if not any(phase.per == "class" for phase in table.search_for(norm, passes // PASSES_PER_START)):
            return 0
        return min(self.candidates, round(math.sqrt(math.sqrt(passes)) - 1.5) + table.extra_classes)

    def classes_scanned(self, followed: int, passes: int) -> int:
        """How many classes are ranked, at a backward each."""
        return min(self.candidates, max(followed, (passes - PROFILE_PASSES) // 16))

    def classify(self, problem: Problem, passes: int) -> tuple[Mask, Mask]:
        """Which samples are near-linear, and which masked, if this many passes are spent.

        Near-linear: a step to the tangent plane of x₀ ends near the boundary, the gradient hardly turns, and the box
        hardly lengthens the step; or the step is small in every coordinate, so that slides can follow the boundary,
        lowers c and does not overshoot. Masked: the step is long, and the gradients at its ends are nearly
        perpendicular or the one at x₀ points out of the box; in ℓ0, also where the step hardly lowers c and the
        gradient turns. With few passes in ℓ0 and ℓ1 the gradient of a near-linear sample may turn further if the step
        does not overshoot, and a sample is masked where the step lowers c but the box blocks most of it, or where it
        hardly lowers c and the gradient turns.
        """
        problem.observer.mark("profile")
        c, g = problem.value_and_gradient(problem.x0)
        z = problem.norm.onto_plane(problem.x0, g, (1 + PAST) * c, problem.box)
        if problem.budget.remaining < 2:
            problem.value(z)
        c_z, g_z = problem.value_and_gradient(z)
        cosine = (L2.steepest(g) * L2.steepest(g_z)).sum(1, keepdim=True)
        moved, farthest = z - problem.x0, problem.box.farthest(problem.x0)
        widest, step = LINF.size(farthest), problem.norm.size(moved) * problem.norm.dual(g)  # c without the box
        near = (c_z < c) & torch.isfinite(widest) & (LINF.size(moved) < self.trust * NEAR * widest)
        flat = (c_z < self.trust * c) & (cosine > 1 - self.trust)
        far = L2.size(moved) > FAR * L2.size(farthest)
        outwards = (cosine < STRAIGHT) & (c < BLOCKED * step)
        if passes < SHORT and (problem.norm.counts or kind_of(problem.norm) == "sparse"):
            turned = cosine < TURNED if problem.norm.counts else outwards | (cosine < BENT)
            masked = far & torch.where(c_z > self.trust * c, turned, c < WALLED * step)
            flat |= (c_z > 0) & (c_z < self.trust * c) & (cosine > TURNED)
        elif problem.norm.counts:
            masked = ((cosine < PERPENDICULAR_SPARSE) & far) | ((cosine < TURNED) & (c_z > self.trust * c))
        else:
            masked = (outwards | (cosine < PERPENDICULAR)) & far
        if not problem.norm.counts:
            flat &= (cosine > STRAIGHT) | (c > (1 - self.trust) * step)
        near_linear = (c_z > -OVERSHOT * self.trust * c) & (flat | near)
        return near_linear[:, 0], (~near_linear & masked)[:, 0]

    def nearest_classes(self, problem: Problem, number: int, passes: int) -> list[Labels]:
        """The classes whose tangent planes at x₀ are nearest, the nearest first; none for a targeted problem."""
        if problem.targeted or number < 1:
            return []
        problem.observer.mark("scan")
        constraints = problem.class_constraints(problem.x0, most=self.classes_scanned(number, passes))
        lengths = []
        for _, c, g in constraints:
            z = problem.norm.onto_plane(problem.x0, g, c, problem.box)
            missed = (g * (z - problem.x0)).sum(1) + c[:, 0] > 1e-3 * c[:, 0].abs()
            lengths.append(torch.where(missed, torch.inf, problem.norm.size(z - problem.x0)[:, 0]))
        order = torch.stack(lengths).argsort(dim=0, stable=True)
        return list(torch.stack([constraint.label for constraint in constraints]).gather(0, order)[:number])

    def close(self, problem: Problem, x: Points) -> None:
        """Query x₀ projected onto the tangent plane at x, and further past it: exact where the boundary is flat."""
        problem.observer.mark("closing")
        c, g = problem.value_and_gradient(x)
        r = c + (g * (problem.x0 - x)).sum(1, keepdim=True)
        for past in CLOSING:
            further = r + past * problem.norm.size(x - problem.x0) * problem.norm.dual(g)
            problem.value(problem.norm.onto_plane(problem.x0, g, further, problem.box))


@dataclass(frozen=True)
class RacePlan:
    """The phases of each profile, with their passes per sample."""

    norm: str
    passes: int
    scans: dict[str, int]
    phases: dict[str, list[PlannedPhase]]

    def rows(self, profile: str) -> list[tuple[str, str, str, int, int]]:
        """Phase, move, start, steps and passes of one profile."""
        rows = [("profile", "gradient", "input", 2, PROFILE_PASSES)]
        if self.scans[profile]:
            rows.append(("scan", "class gradients", "input", 1, self.scans[profile]))
        for phase in self.phases[profile]:
            name = phase.name if phase.target is None else f"{phase.name} {phase.target + 1}"
            move = type(phase.move).__name__.lower()
            rows.append((name, move, phase.start, len(phase.numbers), phase.passes))
        closing = min(CLOSING_PASSES, self.passes - sum(row[-1] for row in rows))
        return [*rows, ("closing", "projection", "incumbent", closing - 1, closing)] if closing >= 2 else rows

    def __str__(self) -> str:
        lines = [f"Race, {self.norm}, {self.passes} passes"]
        width = max(12, *(len(profile) + 1 for profile in self.phases))
        for profile in self.phases:
            lines += ["", f"{profile:<{width}}{'move':<17}{'start':<11}{'steps':>6}{'passes':>8}"]
            lines += [f"{a:<{width}}{b:<17}{c:<11}{d:>6}{e:>8}" for a, b, c, d, e in self.rows(profile)]
            total = sum(row[-1] for row in self.rows(profile))
            lines.append(f"{'total':<{width + 34}}{total:>8}")
        return "\n".join(lines)
