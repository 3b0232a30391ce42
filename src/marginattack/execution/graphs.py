"""Graphs: the captured queries and steps of one model on a GPU, replayed at the cost of one launch."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from marginattack.core.problem import Evaluator, Problem, Step, run_eager
from marginattack.core.queries import Answer
from marginattack.core.tensors import pad_rows
from marginattack.core.types import Goals, Points, State
from marginattack.errors import describe
from marginattack.execution.captured import Answering, CapturedQuery, CapturedStep

CAPTURE_AFTER = 3  # queries or steps of one kind; capturing costs about as much as these
KEPT = 32  # graphs; the least recently used one goes


class Graphs:
    """Captured queries and steps by kind and number of rows; ``why_not`` says why there are none.

    Queries are captured after a few of their kind, steps once a few of their kind are to be made. Each graph is
    compared with eager execution on the same rows; a model that cannot be captured, or then answers otherwise, is run
    eagerly from there on. Eager queries are padded to as many rows as captured ones, so that results do not depend on
    what was captured before.
    """

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not
        self._times: Counter[Hashable] = Counter()
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._pool: Any = None

    def query(self, answer: Answering, kind: Hashable, full_batch: int, points: Points, goals: Goals) -> Answer:
        """Answer a query: captured where this is possible and pays, else eagerly."""
        if self.why_not or not can_capture(points):
            return answer(points, goals)
        n, rows = len(points), graph_rows(len(points), full_batch)
        key = ("query", rows, points.dtype, kind)
        if rows != n:
            points, goals = pad_rows(points, rows), pad_rows(goals, rows)
        self._times[key] += 1
        if key not in self._kept and self._times[key] > CAPTURE_AFTER:
            self._keep(key, partial(CapturedQuery, answer, points, goals))
        captured = self._find(key)
        values, gradients, crossed, logits = (captured or answer)(points, goals)
        return Answer(values[:, :n], gradients[:, :n], crossed[:n], logits[:n])

    def run(
        self, problem: Problem, evaluator: Evaluator, kind: Hashable, rows: int, step: Step, table: Tensor, state: State
    ) -> State:
        """All rows of the table, as a graph of that many rows with this evaluator inside; they are already charged."""
        if self.why_not or not can_capture(problem.x0) or not len(table):
            return run_eager(problem, step, table, state)
        shapes = tuple((tensor.shape[1:], tensor.dtype) for tensor in state)
        key = ("step", rows, kind, problem.shape, problem.box.lo.shape, problem.norm, step, shapes)
        self._times[key] += len(table)
        if key not in self._kept and self._times[key] >= CAPTURE_AFTER:
            self._keep(key, partial(CapturedStep, problem, evaluator, step, table, state, rows))
        captured: CapturedStep | None = self._find(key)
        return run_eager(problem, step, table, state) if captured is None else captured(problem, table, state)

    def clear(self) -> None:
        """Release all memory."""
        self._times.clear()
        self._kept.clear()
        self._pool = None

    def _find(self, key: Hashable) -> Any:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def _keep(self, key: Hashable, capture: Callable[[Any], Any]) -> None:
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            captured = capture(self._pool)
        except (torch.OutOfMemoryError, MemoryError):  # the batch is too large: smaller ones may be captured
            self.clear()
            raise
        except Exception as error:  # a model may do anything that a graph cannot hold
            self.why_not = f"the model cannot be captured: {describe(error.__context__ or error)}"
        else:
            self.why_not = "" if captured.same else "a captured pass answers otherwise than an eager one"
            self._kept[key] = captured
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if self.why_not:
            self.clear()


def can_capture(points: Tensor) -> bool:
    """Whether computations on these points can be captured."""
    return points.is_cuda


def graph_rows(n: int, full_batch: int = 0) -> int:
    """A number of rows not much above n, out of few, so that batches of similar size share a graph.

    A batch that fills most of the rows that a model is compiled for is padded to these.
    """
    if 4 * n > 3 * full_batch and n <= full_batch:
        return full_batch
    if n < 8:
        return 1 << (n - 1).bit_length()
    step = max(8, 1 << max(0, n.bit_length() - 5))
    return -(-n // step) * step


def is_value(thing: Any) -> bool:
    """Whether something is a number, a string, or a tuple or frozen dataclass of such: only then is it captured."""
    if isinstance(thing, tuple):
        return all(map(is_value, thing))
    if isinstance(thing, int | float | str | None):
        return True
    params = vars(type(thing)).get("__dataclass_params__")  # of the class itself: a subclass may have a state
    if params is None or not params.frozen:
        return False
    return all(is_value(getattr(thing, field.name)) for field in fields(thing))
