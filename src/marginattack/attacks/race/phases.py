"""The schedule of Race as data: the phases of each profile and budget class.

A sample has one of three profiles: ``NEAR_LINEAR`` where the boundary is nearly flat on the way from x₀, ``MASKED``
where the gradient at x₀ says nothing about the boundary, ``CURVED`` elsewhere. Where the norm counts coordinates (ℓ0)
and the bounds are finite, it is ``SPARSE`` or ``MASKED_SPARSE``.
Below ``SHORT`` passes there is no room for every phase. Weights are relative: a search phase gets its weight over the
sum of all, times the passes that are left after the scan. The polish gets all that the search leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, TypeAlias

from marginattack.attacks.race.moves import Move
from marginattack.attacks.race.rules import (
    CornersRule,
    DescentRule,
    Numbers,
    ProposalRule,
    PruningRule,
    Rule,
    SlideRule,
    SmoothedRule,
)
from marginattack.core.norms import Norm
from marginattack.core.schedules import Cosine, Geometric

SHORT = 200  # passes, below which the short tables apply
PASSES_PER_START = 200  # of the budget, for each extra start
CLOSING = (1e-7, 1e-6, 1e-5, 1e-4)  # how far past the tangent plane the last points lie, as shares of the distance
CLOSING_PASSES = 2 + len(CLOSING)
FLIP_PASSES = 2  # a forward and a backward for the direction of a start in feature space

Start: TypeAlias = Literal["input", "incumbent", "random", "corner", "flip"]
Kind: TypeAlias = Literal["cube", "round", "sparse"]  # of a norm, by its ball: ℓ∞, ℓ2, ℓ1
ALL_KINDS: tuple[Kind, ...] = ("cube", "round", "sparse")
SCOUTED: tuple[Kind, ...] = ("round", "sparse")  # norms that have a scout norm


def kind_of(norm: Norm) -> Kind:
    """Cube: there is no norm to scout in. Sparse: its steepest direction is one coordinate, so another norm steps."""
    if norm.scout_norm is None:
        return "cube"
    return "round" if norm.step_norm == norm else "sparse"


@dataclass(frozen=True)
class Phase:
    """Steps of one kind from one start, which get a share of the passes by weight.

    A phase is run once, once per followed class ("class", targeted at it), once per extra start ("start", which
    alternates between the rules and starts that are named), or once with that many times its weight ("budget"). In a
    polish the weight is the share of the passes that are left. A phase is only for norms of these ``kinds``, and for
    budgets with ``least_starts`` extra starts or more.
    """

    name: str
    rule: Rule | tuple[Rule, ...]
    start: Start | tuple[Start, ...]
    weight: float
    per: Literal["once", "class", "start", "budget"] = "once"
    kinds: tuple[Kind, ...] = ALL_KINDS
    least_starts: int = 0

    def start_of(self, rank: int) -> Start:
        """Where its run of this rank begins."""
        return self.start[rank % len(self.start)] if isinstance(self.start, tuple) else self.start

    def rule_of(self, rank: int) -> Rule:
        """The rule of its run of this rank."""
        return self.rule[rank % len(self.rule)] if isinstance(self.rule, tuple) else self.rule


@dataclass(frozen=True, kw_only=True)
class Table:
    """The phases of one profile and budget class.

    ``polish_weight`` is the polish's part in the sum of weights. Samples for which the search found nothing run the
    ``fallback`` before the polish. ``extra_classes`` are followed beyond what the budget class pays for.
    """

    search: tuple[Phase, ...]
    polish: tuple[Phase, ...]
    polish_weight: float
    fallback: Phase | None = None
    extra_classes: int = 0

    def search_for(self, norm: Norm, starts: int) -> list[Phase]:
        """The search phases for this norm and this many extra starts."""
        return [phase for phase in self.search if kind_of(norm) in phase.kinds and phase.least_starts <= starts]


@dataclass(frozen=True)
class Profile:
    """A name, and the tables for short and for long budgets."""

    name: str
    short: Table
    long: Table

    def table(self, passes: int) -> Table:
        """The table for this many passes."""
        return self.short if passes < SHORT else self.long

    def without(self, *names: str) -> "Profile":
        """The profile without the search phases of these names."""
        short, long = (
            replace(table, search=tuple(phase for phase in table.search if phase.name not in names))
            for table in (self.short, self.long)
        )
        return Profile(f"{self.name} without {', '.join(names)}", short, long)

    def __repr__(self) -> str:
        bundled = {profile.name: profile for profile in (CURVED, NEAR_LINEAR, MASKED, SPARSE, MASKED_SPARSE)}
        return self.name if bundled.get(self.name) == self else f"Profile({self.name!r}, {self.short}, {self.long})"


DESCENT = DescentRule()
SLOW_DESCENT = DescentRule(warmup=0.625)  # for few steps
BOLD_DESCENT = DescentRule(warmup=0.625, pulse=Cosine(0.4, 0.002))  # from far starts
STEADY_DESCENT = DescentRule(warmup=0.625, pulse=Cosine(0.4, 0.002), memory=0.5)
STEADIER_DESCENT = replace(STEADY_DESCENT, memory=0.7)  # from far starts in ℓ1
SCOUT = DescentRule(scout=True)
PROPOSALS = ProposalRule()
REFINEMENT = DescentRule(step=Cosine(0.3, 0.01), pulse=Cosine(0.05, 0.001), warmup=0.0)
FINE_REFINEMENT = replace(REFINEMENT, pulse=Cosine(0.02, 0.0003))  # in ℓ∞, with many steps

SLIDE = SlideRule()
FLAT_SLIDE = SlideRule(beta=Cosine(1.0, 0.01), average=0.0)  # where the tangent plane can be trusted
SHORT_FLAT_SLIDE = SlideRule(beta=Cosine(1.0, 0.01), past=Geometric(0.02, 0.0005), average=0.3)
CLASS_SLIDE = SlideRule(beta=Cosine(1.0, 0.02))
SHORT_CLASS_SLIDE = SlideRule(beta=Cosine(1.0, 0.02), past=Geometric(0.1, 0.02), average=0.2)

REFINEMENTS = (
    Phase("polish", REFINEMENT, "incumbent", 1.0, kinds=SCOUTED),
    Phase("polish", FINE_REFINEMENT, "incumbent", 1.0, kinds=("cube",)),
)
POLISH = (Phase("polish", SLIDE, "incumbent", 0.5), *REFINEMENTS)
FLAT_POLISH = (Phase("polish", FLAT_SLIDE, "incumbent", 0.5), *REFINEMENTS)
SHORT_POLISH = (Phase("polish", SLIDE, "incumbent", 0.5), Phase("polish", REFINEMENT, "incumbent", 1.0))
SHORT_FLAT_POLISH = (  # a refinement in ℓ∞ only: in the other norms there are too few steps for it
    Phase("polish", SHORT_FLAT_SLIDE, "incumbent", 1.0, kinds=("round",)),
    Phase("polish", replace(SHORT_FLAT_SLIDE, average=0.5), "incumbent", 1.0, kinds=("sparse",)),
    Phase("polish", SHORT_FLAT_SLIDE, "incumbent", 0.3, kinds=("cube",)),
    Phase("polish", REFINEMENT, "incumbent", 1.0, kinds=("cube",)),
)

CURVED = Profile(
    "CURVED",
    short=Table(
        search=(
            Phase("descend", SLOW_DESCENT, "input", 0.6),
            Phase("restart", BOLD_DESCENT, "random", 0.5, kinds=("round",)),
            Phase("restart", BOLD_DESCENT, "random", 0.25, kinds=("cube",)),
        ),
        polish=SHORT_POLISH,
        polish_weight=0.2,
    ),
    long=Table(
        search=(
            Phase("scout", SCOUT, "input", 0.45, kinds=SCOUTED),
            Phase("scout", SLIDE, "incumbent", 0.55, kinds=SCOUTED),
            Phase("descend", DESCENT, "input", 1.0),
            Phase("target", DESCENT, "input", 0.4, per="class"),
            Phase("restart", DESCENT, ("random", "flip", "random"), 0.25, per="start", least_starts=3),
            Phase("propose", PROPOSALS, "incumbent", 0.2, per="budget", kinds=("cube",)),
        ),
        polish=POLISH,
        polish_weight=1.0,
    ),
)

NEAR_LINEAR = Profile(
    "NEAR_LINEAR",
    short=Table(
        search=(
            Phase("target", SHORT_CLASS_SLIDE, "input", 0.4, per="class", kinds=SCOUTED),
            Phase("target", SHORT_CLASS_SLIDE, "input", 0.27, per="class", kinds=("cube",)),
        ),
        polish=SHORT_FLAT_POLISH,
        polish_weight=1.2,
        fallback=Phase("descend", SLOW_DESCENT, "input", 1 / 1.2),
        extra_classes=1,
    ),
    long=Table(
        search=(
            Phase("scout", SCOUT, "input", 0.45, kinds=SCOUTED),
            Phase("scout", FLAT_SLIDE, "incumbent", 0.55, kinds=SCOUTED),
            Phase("descend", DESCENT, "input", 0.5),
            Phase("target", CLASS_SLIDE, "input", 0.4, per="class"),
            Phase("restart", DESCENT, ("flip", "random"), 0.25, per="start", least_starts=3),
            Phase("restart", CLASS_SLIDE, "flip", 0.1, per="start", least_starts=3),
        ),
        polish=FLAT_POLISH,
        polish_weight=2.0,
    ),
)

MASKED = Profile(
    "MASKED",
    short=Table(
        search=(
            Phase("restart", BOLD_DESCENT, "random", 1.0, kinds=("cube", "round")),
            Phase("restart", STEADIER_DESCENT, "random", 1.0, kinds=("sparse",)),
        ),
        polish=SHORT_POLISH,
        polish_weight=0.1,
    ),
    long=Table(
        search=(
            Phase("descend", DESCENT, "input", 0.6),
            Phase("target", DESCENT, "input", 0.2, per="class", least_starts=3),
            Phase("restart", STEADY_DESCENT, "random", 0.25, per="start", kinds=SCOUTED),
            Phase("restart", STEADY_DESCENT, "random", 0.25, per="start", kinds=SCOUTED),
            Phase("restart", STEADY_DESCENT, ("corner", "flip", "random"), 0.25, per="start", kinds=("cube",)),
            Phase("propose", PROPOSALS, "incumbent", 0.4, per="budget", kinds=("cube",)),
        ),
        polish=POLISH,
        polish_weight=0.4,
    ),
)

CORNERS, SMOOTHED, PRUNING = CornersRule(), SmoothedRule(), PruningRule()
FAST_CORNERS = CornersRule(pulse=Cosine(0.4, 0.01), growth=3.0)  # for few steps
FAST_SMOOTHED = SmoothedRule(step=Cosine(1.0, 0.6), threshold=0.02)  # for few steps
HALVING = SmoothedRule(step=Cosine(0.5, 0.3), threshold=0.02)  # its first step halves the largest changes
PRUNE = (Phase("prune", PRUNING, "incumbent", 1.0),)

SPARSE = Profile(
    "SPARSE",
    short=Table(search=(Phase("corners", FAST_CORNERS, "input", 1.0),), polish=PRUNE, polish_weight=0.6),
    long=Table(
        search=(
            Phase("corners", CORNERS, "input", 0.5),
            Phase("smooth", SMOOTHED, "input", 1.0),
            Phase("target", CORNERS, "input", 0.3, per="class", least_starts=3),
            Phase("restart", CORNERS, ("random", "incumbent"), 0.4, per="start"),
        ),
        polish=PRUNE,
        polish_weight=0.5,
    ),
)

MASKED_SPARSE = Profile(
    "MASKED_SPARSE",
    short=Table(
        search=(Phase("smooth", FAST_SMOOTHED, "input", 1.0), Phase("smooth", HALVING, "incumbent", 1.0)),
        polish=PRUNE,
        polish_weight=0.7,
    ),
    long=Table(
        search=(
            Phase("corners", CORNERS, "input", 0.5),
            Phase("smooth", SMOOTHED, "input", 0.6),
            Phase("restart", (HALVING, HALVING, SMOOTHED), ("incumbent", "incumbent", "random"), 0.6, per="start"),
        ),
        polish=PRUNE,
        polish_weight=0.5,
    ),
)


@dataclass(frozen=True)
class PlannedPhase:
    """A phase with its steps: a move, its numbers, and the rank of the class that it is targeted at.

    ``layer`` is the hidden layer, counted from the last one, whose units a "flip" changes. Samples that have found
    nothing so far run the ``fallback``, if there is one, instead of this and all later phases.
    """

    name: str
    move: Move
    numbers: Numbers
    start: Start
    target: int | None = None
    layer: int = 0
    fallback: "tuple[PlannedPhase, ...]" = ()

    @property
    def passes(self) -> int:
        """What it costs per sample."""
        return self.move.passes * len(self.numbers) + self.start_passes

    @property
    def start_passes(self) -> int:
        """What its start costs per sample."""
        return FLIP_PASSES if self.start == "flip" else 0


def plan_search(table: Table, norm: Norm, passes: int, classes: int, starts: int) -> list[PlannedPhase]:
    """The search phases, given the passes for search and polish and how many classes and extra starts there are."""
    phases = table.search_for(norm, starts)
    times = {"once": 1, "class": classes, "start": starts, "budget": starts}
    weights = sum(times[phase.per] * phase.weight for phase in phases) + table.polish_weight
    passes_per_weight = passes / (weights or 1)
    planned, layers = [], count()
    for phase in phases:
        runs, weight = (1, starts * phase.weight) if phase.per == "budget" else (times[phase.per], phase.weight)
        for rank in range(runs if weight else 0):
            one = _plan(phase, norm, weight * passes_per_weight, rank)
            one = replace(one, layer=next(layers)) if one.start == "flip" else one
            planned.append(replace(one, target=rank) if phase.per == "class" else one)
    return planned


def plan_polish(table: Table, norm: Norm, passes: int) -> list[PlannedPhase]:
    """The polish phases, with all passes but those of the closing."""
    polish = _plan_polish(table.polish, norm, passes)
    if table.fallback is None:
        return polish
    fallback = _plan(table.fallback, norm, table.fallback.weight * passes)
    rest = _plan_polish(table.polish, norm, passes - fallback.passes)
    return [replace(polish[0], fallback=(fallback, *rest)), *polish[1:]]


def plan_all(table: Table, norm: Norm, passes: int, classes: int, starts: int) -> list[PlannedPhase]:
    """The search, and the polish with all that it leaves."""
    search = plan_search(table, norm, passes, classes, starts)
    return search + plan_polish(table, norm, passes - sum(phase.passes for phase in search))


def truncate(phases: Sequence[PlannedPhase], passes: int) -> list[PlannedPhase]:
    """As many steps of the phases as fit into these passes."""
    kept: list[PlannedPhase] = []
    for phase in phases:
        left = passes - sum(one.passes for one in kept)
        if (steps := (left - phase.start_passes) // phase.move.passes) > 0:
            kept.append(replace(phase, numbers=phase.numbers[:steps]))
    return kept


def _plan_polish(phases: Sequence[Phase], norm: Norm, passes: int) -> list[PlannedPhase]:
    planned: list[PlannedPhase] = []
    phases = [phase for phase in phases if kind_of(norm) in phase.kinds]
    for phase in phases:
        left = passes - sum(one.passes for one in planned)
        left -= CLOSING_PASSES if phase is phases[-1] else 0
        planned.append(_plan(phase, norm, phase.weight * left))
    return planned


def _plan(phase: Phase, norm: Norm, passes: float, rank: int = 0) -> PlannedPhase:
    """At least one step."""
    rule, start = phase.rule_of(rank), phase.start_of(rank)
    move = rule.move(norm)
    return PlannedPhase(phase.name, move, rule.numbers(max(1, int(passes / move.passes))), start)
