"""How samples in different phases are run: group by group (the specification), or interleaved.

On a GPU the batch is queried as a whole, whatever phase a sample is in: two queries of half a batch cost more than one
of all of it, and a graph is captured for one size. Elsewhere each group, the samples that have the same phases to go,
is queried by itself. The host knows which sample is in which group, so that it prepares the next steps while the GPU is
still busy; it waits only where some samples may have to take a fallback.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias, final

import torch
from torch import Tensor

from marginattack.attacks.race.moves import GradientMove, Move
from marginattack.attacks.race.phases import PlannedPhase
from marginattack.core.draws import Draws
from marginattack.core.goals import reach
from marginattack.core.norms import LINF
from marginattack.core.problem import Problem, Step
from marginattack.core.tensors import to_device_of
from marginattack.core.types import Goals, Labels, Mask, Points, State

MOST_GROUPS = 4  # at a time: three profiles, and those samples of one that take the fallback
COLUMNS = 4  # of a group in an interleaved plan: the kind of move, and its three numbers
FLIP_DISTANCE = 2.0  # how far from x₀ a flip lies, in distances of the incumbent
EVEN = 6  # passes by which the budgets left inside an interleaved group may differ, as after a confirmation

Group: TypeAlias = tuple[Mask, Sequence[PlannedPhase]]  # which samples, on the host, and their phases


def split_last(phases: Sequence[PlannedPhase], passes: int) -> tuple[list[PlannedPhase], list[PlannedPhase]]:
    """The phases without the last steps from the incumbent, as many as fit into these passes; and these."""
    head, tail = list(phases), list[PlannedPhase]()
    while head and head[-1].start == "incumbent" and (steps := passes // head[-1].move.passes) > 0:
        last = head.pop()
        if steps < len(last.numbers):
            head.append(replace(last, numbers=last.numbers[:-steps]))
            first = (*last.numbers[-steps][:2], last.numbers[0][2])  # a first step averages no earlier gradients
            return head, [replace(last, numbers=(first, *last.numbers[1 - steps or len(last.numbers) :])), *tail]
        tail.insert(0, last)
        passes -= last.passes
    return head, tail


def run_groups(problem: Problem, groups: Sequence[Group], classes: Sequence[Labels]) -> None:
    """Run the phases of all groups, interleaved where that is possible and each group has about as much budget left."""
    left = [problem.budget.remaining_of(rows) for rows, _ in groups]
    even = all(max(each, default=0) - min(each, default=0) < EVEN for each in left)
    if even and problem.enough is None and problem.evaluator.can_interleave(problem):
        run_interleaved(problem, groups, classes)
    else:
        run_sequential(problem, groups, classes)
    problem.draws.skip()


def run_sequential(problem: Problem, groups: Sequence[Group], classes: Sequence[Labels]) -> None:
    """Run one group after the other, each phase by phase. Draws of one group do not depend on another."""
    for rows, phases in groups:
        labels = [label[rows] for label in classes]
        with problem.subproblem(rows.nonzero()[:, 0], known=True, draws=problem.draws) as part:
            part.solve(partial(run_phases, phases=phases, classes=labels))


def run_phases(problem: Problem, phases: Sequence[PlannedPhase], classes: Sequence[Labels]) -> None:
    """Run phases one after the other; samples that have found nothing take the fallback, where there is one."""
    for number, phase in enumerate(phases, start=1):
        missed = torch.isinf(problem.incumbent.distance[:, 0])
        if phase.fallback and bool(missed.any()):
            rest = [replace(phase, fallback=()), *phases[number:]]
            for rows, way in ((missed, phase.fallback), (~missed, rest)):
                with problem.masked(rows) as part:
                    run_phases(replace(part, draws=problem.draws.fork()), way, classes)
            return
        run_phase(problem, phase, classes)


def run_phase(problem: Problem, phase: PlannedPhase, classes: Sequence[Labels]) -> None:
    """Run one phase for all samples."""
    problem.observer.mark(phase.name)
    x, move = start_points(problem, phase, problem.draws), phase.move.aimed(problem)
    if phase.target is None:
        problem.run(move, phase.numbers, *move.begin(problem, x))
        return
    with problem.subproblem(targets=classes[phase.target]) as part:
        part.run(move, phase.numbers, *move.begin(part, x))


def start_points(problem: Problem, phase: PlannedPhase, draws: Draws) -> Points:
    """Where a phase begins: x₀, the incumbent, or about as far from x₀ as it: a random point or corner, or a flip.

    A flip lies in a direction that changes the signs of hidden units: activation patterns are what separates local
    minima, and noise hardly changes them.
    """
    x0 = problem.x0
    if phase.start == "input":
        return x0
    x = incumbent_or_random(problem, draws)
    if phase.start == "incumbent":
        return x
    if phase.start in ("random", "corner"):
        noise = 2 * draws.uniform() - 1
        return problem.box.clamp(x0 + LINF.size(x - x0) * (noise if phase.start == "random" else torch.sign(noise)))
    norm = problem.norm.step_norm
    direction = norm.steepest(problem.flip_direction(draws, phase.layer))
    return problem.box.clamp(x0 + FLIP_DISTANCE * norm.size(x - x0) * direction)


def incumbent_or_random(problem: Problem, draws: Draws) -> Points:
    """The incumbent; a random point of the box where there is none."""
    width = problem.box.width
    corner = torch.where(width > 0, problem.box.lo, problem.x0)
    found = torch.isfinite(problem.incumbent.distance)
    return torch.where(found, problem.incumbent.points, corner + width * draws.uniform())


@final
@dataclass(frozen=True)
class InterleavedStep(Step):
    """One query for all groups, then each sample's own kind of move. A sample's group is the last of its state."""

    kinds: tuple[GradientMove, ...]
    queries: ClassVar = 1

    def __call__(self, problem: Problem, numbers: Tensor, *state: Tensor) -> State:
        *own, group = state
        c, g = problem.value_and_gradient(own[0])
        chosen = numbers.view(MOST_GROUPS, COLUMNS)[group[:, 0]]
        kind, mine = chosen[:, :1], chosen[:, 1:]
        after = self.kinds[0].move(problem, mine, c, g, *own)
        for number in range(1, len(self.kinds)):
            other = self.kinds[number].move(problem, mine, c, g, *own)
            after = _select(kind == number, other, after)
        return *after, group


class _Group:
    """Samples with the same phases to go, and how many steps of the first they have made."""

    def __init__(self, problem: Problem, rows: Mask, phases: Sequence[PlannedPhase], draws: Draws) -> None:
        self.rows, self.phases, self.done, self.draws = rows, list(phases), 0, draws
        self.column = to_device_of(rows[:, None], problem.x0)

    def split_fallback(self, problem: Problem) -> "list[_Group]":
        """Move samples that have to take the fallback into a group of their own."""
        if not (fallback := self.phases[0].fallback):
            return []
        missed = self.rows & torch.isinf(problem.incumbent.distance[:, 0]).cpu()
        if not bool(missed.any()):
            return []
        self.rows = self.rows & ~missed
        self.column = to_device_of(self.rows[:, None], problem.x0)
        return [_Group(problem, missed, fallback, self.draws.fork())]

    def advance(self, steps: int) -> None:
        """Count these steps; after its last one a phase ends."""
        self.done += steps
        if self.done == len(self.phases[0].numbers):
            self.phases, self.done = self.phases[1:], 0


class _Interleaving:
    """The groups that share queries, and the goal and the state of every sample."""

    def __init__(self, problem: Problem, groups: Sequence[Group], classes: Sequence[Labels]) -> None:
        self.problem, self.classes = problem, classes
        self.groups = [_Group(problem, rows, phases, problem.draws.fork()) for rows, phases in groups]
        self.goals: Goals = problem.goals
        moves = [phases[0].move for _, phases in groups if phases]
        self.state: State = moves[0].begin(problem, problem.x0) if moves else ()

    @property
    def running(self) -> list[_Group]:
        """The groups that have phases to go."""
        return [group for group in self.groups if group.phases]

    def start_phases(self) -> None:
        """Put every group that is between two phases at the start of the next one, as far as its budget goes."""
        for group in self.running:
            if not group.done:
                self.groups += group.split_fallback(self.problem)
        for group in self.groups:
            if not group.done:
                self._start_phase(group)

    def _start_phase(self, group: _Group) -> None:
        problem = self.problem
        left = min(problem.budget.remaining_of(group.rows), default=0)
        if not group.phases or left < group.phases[0].start_passes + 2:
            group.phases = []
            self.goals = torch.where(group.column, 0, self.goals)  # to wait: nothing to cross
            return
        phase = group.phases[0]
        if not isinstance(phase.move, GradientMove):  # its queries cannot be shared
            with problem.subproblem(group.rows.nonzero()[:, 0], known=True, draws=group.draws) as part:
                part.solve(partial(run_phase, phase=phase, classes=()))
                group.draws.count = part.draws.count
            group.phases = group.phases[1:]
            self._start_phase(group)
            return
        group.phases[0] = replace(phase, numbers=phase.numbers[: (left - phase.start_passes) // phase.move.passes])
        goals = problem.goals if phase.target is None else reach(self.classes[phase.target])
        self.goals = torch.where(group.column, goals, self.goals)
        with problem.masked(group.rows) as part:  # which is charged for the start
            x = start_points(part, phase, group.draws)
        self.state = _select(group.column, phase.move.begin(problem, x), self.state)

    def run_until_a_phase_ends(self) -> None:
        """As many steps as all running groups have in common."""
        running = self.running
        moves = (group.phases[0].move for group in running)
        kinds = sorted({move for move in moves if isinstance(move, GradientMove)}, key=repr)
        number_of: dict[Move, int] = {kind: number for number, kind in enumerate(kinds)}
        steps = min(len(group.phases[0].numbers) - group.done for group in running)
        plan = [[0.0] * MOST_GROUPS * COLUMNS for _ in range(steps)]
        index = torch.zeros(len(self.problem.x0), 1, dtype=torch.int64)
        for number, group in enumerate(self.groups):
            index += number * group.rows[:, None]
            if group.phases:
                phase = group.phases[0]
                for row, numbers in zip(plan, phase.numbers[group.done :], strict=False):
                    row[number * COLUMNS : (number + 1) * COLUMNS] = (float(number_of[phase.move]), *numbers)
        charged = torch.stack([group.rows for group in running]).any(0)
        after = self.problem.retarget(self.goals).run(
            InterleavedStep(tuple(kinds)), plan, *self.state, to_device_of(index, self.problem.x0), charged=charged
        )
        self.state = after[:-1]
        for group in running:
            group.advance(steps)


def run_interleaved(problem: Problem, groups: Sequence[Group], classes: Sequence[Labels]) -> None:
    """Run all groups side by side. Samples that have no phase left wait, and are not charged."""
    interleaving = _Interleaving(problem, groups, classes)
    while interleaving.running:
        interleaving.start_phases()
        if interleaving.running:
            interleaving.run_until_a_phase_ends()


def _select(rows: Tensor, these: State, those: State) -> State:
    """These rows of the one state, the others of the other; what is the same tensor in both stays it."""
    return tuple(a if a is b else torch.where(rows, a, b) for a, b in zip(these, those, strict=True))
