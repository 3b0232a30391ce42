"""CUDA graphs: a step of an attack, or one look at the model, captured once and replayed at the price of one launch.

What is captured is a function of tensors that stay where they are. Replays copy what they are about into these tensors,
and the answer out of them. The model's kernels are the same as in plain execution, and so is what they compute.
"""

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from marginattack.core.types import Logits, Mask, Points
from marginattack.errors import describe

if TYPE_CHECKING:
    from marginattack.core.problem import Problem

OFTEN = 3  # looks of one kind after which the next is captured, which costs about as much as these
KEPT = 32  # graphs; the one used least recently goes
BLOCK = 256  # rows of a plan that lie on the device at a time
CLOSE, FEW = 1e-3, 0.02  # by how much of the largest entry a captured answer may differ, and which share by more


class Look(NamedTuple):
    """What was seen of n points: k beliefs, raised by what rounding can hide, and their gradients; who has crossed."""

    values: Tensor  # (k, n)
    slopes: Tensor  # (k, n, d); the points themselves where no gradients were asked for
    crossed: Mask
    logits: Logits


# (points, aims) ↦ what is seen there
Looking: TypeAlias = Callable[[Points, Tensor], Look]

State: TypeAlias = tuple[Tensor, ...]


class Step(ABC):
    """One step of an attack: a value, so that equal steps share a graph.

    It maps what the plan says for now, one (1, 1) tensor a column, and the state, a row a sample in each tensor, to the
    next state. It may look at the model through the problem, ``looks`` times with a gradient, which may change the best
    points in place; nothing else that it reads may change between steps, and no tensor of the new state may be one of
    the old in another place.
    """

    looks: ClassVar[int]

    @abstractmethod
    def __call__(self, problem: "Problem", now: Sequence[Tensor], *state: Tensor) -> State:
        """The next state."""

    @property
    def lasting(self) -> bool:
        """Whether it is a value through and through, without a memory of its own; only then can it be captured."""
        return _is_value(self)


class CapturedLook:
    """A look at a fixed number of rows."""

    def __init__(self, looking: Looking, points: Points, aim: Tensor, pool: Any) -> None:
        self.points, self.aim = points.clone(), aim.clone()
        plain = looking(self.points, self.aim)
        self.graph, self.seen = _captured(lambda: looking(self.points, self.aim), points.device, pool)
        self.graph.replay()
        self.same = _same(self.seen, plain)

    def __call__(self, points: Points, aim: Tensor) -> Look:
        self.points.copy_(points)
        self.aim.copy_(aim)
        self.graph.replay()
        return Look(*(tensor.clone() for tensor in self.seen))


class CapturedStep:
    """A step of a fixed number of rows, on a problem of its own that stands in for those that are walked."""

    def __init__(self, problem: "Problem", step: Step, table: Tensor, state: State, rows: int, pool: Any) -> None:
        inner = self.inner = problem.stand_in(rows)
        self.state = tuple(padded(tensor, rows) for tensor in state)
        self.table = problem.x0.new_zeros(BLOCK, table.shape[1])
        self.row = torch.zeros(1, dtype=torch.int64, device=problem.x0.device)
        kept = inner.found()

        def once() -> State:
            now = self.table.index_select(0, self.row).view(-1, 1, 1).unbind(0)
            after = (*step(inner, now, *self.state), *inner.found())
            inner.best, inner.distance, inner.anytime.best = kept
            return after

        def onward() -> None:
            for old, new in zip((*self.state, *kept), once(), strict=True):
                if new is not old:
                    old.copy_(new)
            self.row.add_(1)

        self.table[:1].copy_(table[:1])
        plain = tuple(tensor.clone() for tensor in once())
        inner.load(problem)  # what the plain step wrote in place is as before
        self.graph, _ = _captured(onward, problem.x0.device, pool)
        self.graph.replay()
        self.same = _same((*self.state, *kept), plain)

    def __call__(self, problem: "Problem", table: Tensor, state: State) -> State:
        n = len(problem.x0)
        self.inner.load(problem)
        for static, tensor in zip(self.state, state, strict=True):
            static[:n].copy_(tensor)
        for block in table.split(BLOCK):
            self.table[: len(block)].copy_(block)
            self.row.zero_()
            for _ in range(len(block)):
                self.graph.replay()
        problem.unload(self.inner)
        return tuple(tensor[:n].clone() for tensor in self.state)


class Graphs:
    """Captured looks and steps of one model on a GPU, by kind and number of rows; ``why`` says why there are none.

    Steps are captured when they are first asked for, looks when there were some of their kind. Each is compared with
    plain execution on the same rows; a model that cannot be captured, or answers otherwise then, is looked at plainly
    from there on. Plain looks have as many rows as captured ones, so that what was captured before changes nothing.
    """

    def __init__(self, why: str = "") -> None:
        self.why = why
        self._times: Counter[Hashable] = Counter()
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._pool: Any = None

    def look(self, looking: Looking, kind: Hashable, full: int, points: Points, aim: Tensor) -> Look:
        """A look: captured where this pays and is possible, else plain. ``full`` rows the model is compiled for."""
        if self.why or not possible(points):
            return looking(points, aim)
        n, rows = len(points), friendly(len(points), full)
        key = ("look", rows, points.dtype, kind)
        if rows != n:
            points, aim = padded(points, rows), padded(aim, rows)
        self._times[key] += 1
        if key not in self._kept and self._times[key] > OFTEN:
            self._keep(key, partial(CapturedLook, looking, points, aim))
        captured = self._known(key)
        values, slopes, crossed, logits = (captured or looking)(points, aim)
        return Look(values[:, :n], slopes[:, :n], crossed[:n], logits[:n])

    def walk(self, problem: "Problem", step: Step, table: Tensor, state: State) -> State:
        """All rows of the plan, paid for already."""
        if self.why or not possible(problem.x0) or not len(table):
            return plainly(problem, step, table, state)
        rows = friendly(len(problem.x0), problem.classifier.full)
        key = ("step", rows, problem.kind, step, tuple((tensor.shape[1:], tensor.dtype) for tensor in state))
        if key not in self._kept:
            self._keep(key, partial(CapturedStep, problem, step, table, state, rows))
        captured: CapturedStep | None = self._known(key)
        return plainly(problem, step, table, state) if captured is None else captured(problem, table, state)

    def clear(self) -> None:
        """Let go of all memory."""
        self._times.clear()
        self._kept.clear()
        self._pool = None

    def _known(self, key: Hashable) -> Any:
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
        except Exception as error:  # whatever a model does that a graph cannot hold
            self.why = f"no graph of it can be captured: {describe(error.__context__ or error)}"
        else:
            self.why = "" if captured.same else "a captured pass answers otherwise than a plain one"
            self._kept[key] = captured
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if self.why:
            self.clear()


def possible(points: Tensor) -> bool:
    """Whether what is computed from these points can be captured."""
    return points.is_cuda


def plainly(problem: "Problem", step: Step, table: Tensor, state: State) -> State:
    """A step for each row of the table."""
    for now in table:
        state = step(problem, now.view(-1, 1, 1).unbind(0), *state)
    return state


def friendly(n: int, full: int = 0) -> int:
    """A number of rows not much above n, from few that there are: batches of about the same size share a graph.

    What fills most of the rows that a model is compiled for is filled up to them.
    """
    if 4 * n > 3 * full and n <= full:
        return full
    step = max(8, 1 << max(0, n.bit_length() - 5))
    return -(-n // step) * step


def _captured(function: Callable[[], Any], device: torch.device, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of what the function launches, and what it returns: tensors that each replay fills anew."""
    graph, stream = torch.cuda.CUDAGraph(), _stream(device)
    torch.cuda.empty_cache()  # while it captures, the allocator cannot take back what lies idle
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            answer = function()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph, answer


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: each stream has workspaces of its own."""
    return torch.cuda.Stream(device)


def padded(tensor: Tensor, rows: int) -> Tensor:
    """A copy with so many rows; those that there are not are like the first."""
    filled = tensor[:1].expand(rows, *tensor.shape[1:]).clone()
    filled[: len(tensor)] = tensor
    return filled


def onto(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy on another's device, for which nobody waits."""
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor.to(like.device)


def _same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether all but a few entries agree to rounding: where a sign is undecided, rounding decides."""
    return all(_close(a, b) for a, b in zip(found, expected, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    a, b = (tensor.double().nan_to_num(0.0, 0.0, 0.0) for tensor in (a, b))
    far = (a - b).abs() > CLOSE * b.abs().amax() + 1e-30
    return float(far.double().mean()) <= FEW


def _is_value(thing: Any) -> bool:
    """Whether something is a number, a word or a tuple or frozen dataclass of such."""
    if isinstance(thing, tuple):
        return all(map(_is_value, thing))
    if isinstance(thing, int | float | str | None):
        return True
    params = vars(type(thing)).get("__dataclass_params__")  # of the class itself: a subclass may have a memory
    if params is None or not params.frozen:
        return False
    return all(_is_value(getattr(thing, field.name)) for field in fields(thing))
