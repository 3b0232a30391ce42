"""Queries and steps captured as CUDA graphs: functions of tensors that stay in place.

A replay copies its inputs into these tensors and the results out of them. The kernels are those of eager execution.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from marginattack.core.box import Box
from marginattack.core.budget import Prepaid
from marginattack.core.fusion import kernel
from marginattack.core.incumbent import Incumbent
from marginattack.core.problem import Evaluator, Problem, Step
from marginattack.core.queries import Answer
from marginattack.core.tensors import pad_rows
from marginattack.core.types import Goals, Mask, Points, State

TABLE_ROWS = 256  # rows of a plan that lie on the device at a time
CLOSE, FEW = 1e-3, 0.02  # the largest difference, as a share of the largest entry, and the share of entries beyond it

_CAPTURING = threading.Lock()  # all threads capture on one stream

Answering = Callable[[Points, Goals], Answer]


class CapturedQuery:
    """A query for a fixed number of points."""

    def __init__(self, answer: Answering, points: Points, goals: Goals, pool: Any) -> None:
        self.points, self.goals = points.clone(), goals.clone()
        eager = answer(self.points, self.goals)
        self.graph, self.answer = capture(lambda: answer(self.points, self.goals), points.device, pool)
        self.graph.replay()
        self.same = agree(self.answer, eager)

    def __call__(self, points: Points, goals: Goals) -> Answer:
        self.points.copy_(points)
        self.goals.copy_(goals)
        self.graph.replay()
        return Answer(*(tensor.clone() for tensor in self.answer))


class StaticIncumbent(Incumbent):
    """An incumbent that is updated in place, for a captured step."""

    def __init__(self, incumbent: Incumbent, rows: int) -> None:
        super().__init__(pad_rows(incumbent.x0, rows), Box(incumbent.box.lo.clone(), incumbent.box.hi.clone()),
                         incumbent.norm)  # fmt: skip
        self.points, self.distance = pad_rows(incumbent.points, rows), pad_rows(incumbent.distance, rows)
        self.history = incumbent.history.padded(incumbent.origin, rows)

    def offer(self, x: Points, crossed: Mask, goals: Goals, passes: int, rows: slice | Tensor) -> None:
        if (record := kernel("record", x, self.norm)) is not None:
            record(x, self, crossed, goals, passes)
            return
        points, distance = self.points, self.distance
        size = self.judge(x, crossed)
        self.points, self.distance = points.copy_(self.points), distance.copy_(self.distance)
        self.history.record(None, passes * goals[:, 1].abs(), size)

    @property
    def found(self) -> State:
        """Everything that an offer changes."""
        return self.points, self.distance, *self.history.tensors

    def load(self, other: Incumbent) -> None:
        """Take over the state of an incumbent; rows beyond it keep what they have."""
        n = len(other.x0)
        self.box.lo.copy_(other.box.lo)
        self.box.hi.copy_(other.box.hi)
        self.x0[:n].copy_(other.x0)
        mine = (self.points, self.distance, *self.history.tensors)
        history = other.history.tensors
        theirs = history if other.origin is None else tuple(tensor[other.origin] for tensor in history)
        for static, tensor in zip(mine, (other.points, other.distance, *theirs), strict=True):
            static[:n].copy_(tensor)

    def unload(self, other: Incumbent) -> None:
        """Hand back what was found."""
        n = len(other.x0)
        other.points, other.distance = self.points[:n].clone(), self.distance[:n].clone()
        for tensor, static in zip(other.history.tensors, self.history.tensors, strict=True):
            if other.origin is None:
                tensor.copy_(static[:n])
            else:
                tensor.index_copy_(0, other.origin, static[:n])


class CapturedStep:
    """A step for a fixed number of rows, on a problem of its own that stands in for those that are run."""

    def __init__(
        self, problem: Problem, evaluator: Evaluator, step: Step, table: Tensor, state: State, rows: int, pool: Any
    ) -> None:
        self.incumbent = StaticIncumbent(problem.incumbent, rows)
        self.goals = pad_rows(problem.goals, rows)
        stand_in = replace(
            problem, evaluator=evaluator, x0=self.incumbent.x0, box=self.incumbent.box, goals=self.goals,
            budget=Prepaid(rows), incumbent=self.incumbent,
        )  # fmt: skip
        self.state = tuple(pad_rows(tensor, rows) for tensor in state)
        self.table = problem.x0.new_zeros(TABLE_ROWS, table.shape[1])
        self.row = torch.zeros(1, dtype=torch.int64, device=problem.x0.device)

        def next_state() -> State:
            return step(stand_in, self.table.index_select(0, self.row), *self.state)

        def advance() -> None:
            for old, new in zip(self.state, next_state(), strict=True):
                if new is not old:
                    old.copy_(new)
            self.row.add_(1)

        self.table[:1].copy_(table[:1])
        before = tuple(tensor.clone() for tensor in self.incumbent.found)
        eager = tuple(tensor.clone() for tensor in (*next_state(), *self.incumbent.found))
        for tensor, value in zip(self.incumbent.found, before, strict=True):  # undo what the eager step recorded
            tensor.copy_(value)
        self.graph, _ = capture(advance, problem.x0.device, pool)
        self.graph.replay()
        self.same = agree((*self.state, *self.incumbent.found), eager)

    def __call__(self, problem: Problem, table: Tensor, state: State) -> State:
        n = len(problem.x0)
        self.incumbent.load(problem.incumbent)
        self.goals[:n].copy_(problem.goals)
        for static, tensor in zip(self.state, state, strict=True):
            static[:n].copy_(tensor)
        for block in table.split(TABLE_ROWS):
            self.table[: len(block)].copy_(block)
            self.row.zero_()
            for _ in range(len(block)):
                self.graph.replay()
        self.incumbent.unload(problem.incumbent)
        return tuple(tensor[:n].clone() for tensor in self.state)


def capture(function: Callable[[], Any], device: torch.device, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of what the function launches, and what it returns: tensors that each replay overwrites."""
    graph, stream = torch.cuda.CUDAGraph(), _stream(device)
    with _CAPTURING:
        if _scarce(device):  # while it captures, the allocator cannot reclaim idle memory
            torch.cuda.empty_cache()
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                answer = function()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
    return graph, answer


def _scarce(device: torch.device) -> bool:
    """Whether less memory is free than this process holds, in use or idle."""
    free, _ = torch.cuda.mem_get_info(device)
    return free < torch.cuda.memory_reserved(device)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: each stream has its own workspaces."""
    return torch.cuda.Stream(device)


def agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether all but a few entries agree up to rounding, which decides where a sign is undecided."""
    return all(_close(a, b) for a, b in zip(found, expected, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    a, b = (tensor.double().nan_to_num(0.0, 0.0, 0.0) for tensor in (a, b))
    far = (a - b).abs() > CLOSE * b.abs().amax() + 1e-30
    return float(far.double().mean()) <= FEW
