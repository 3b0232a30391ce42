"""Threads on a CPU: parts of a batch are attacked at the same time, each with its share of torch's threads.

Torch's own threads split each operation, and wait for each other after each. Python overhead and small operations then
take one core; and where the cores are busy, all wait for the slowest thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor, nn

from marginattack.core.flags import plain_passes, restored_threads
from marginattack.execution.evaluator import ModelEvaluator
from marginattack.execution.graphs import is_value
from marginattack.execution.memory import bytes_per_input
from marginattack.execution.session import Session

LEAST_ROWS = 4  # of a part: the fewer rows, the more time each takes; and a single row is rounded otherwise
LEAST_BYTES = 1 << 20  # that a pass of a part keeps: below, Python takes most of the time, which threads cannot share
MOST_PARTS = 8
MOST_OBJECTS = 100_000  # that are looked at for a state; a model that refers to more is attacked in one thread

T = TypeVar("T")
Part = tuple[Tensor, ModelEvaluator]  # rows of a batch, and what evaluates the model on them


def solve_parts(
    session: Session,
    solve: Callable[[Tensor, ModelEvaluator], T],
    parts: Sequence[Part],
    images: Tensor,
    attack: object,
) -> list[tuple[Tensor, T]]:
    """Solve each part of a batch; on a CPU in threads, in as many smaller parts, where that is safe and pays.

    It is safe if neither the model nor the attack has a state: rows are independent of each other, and draws belong to
    samples.
    """
    threads = torch.get_num_threads()
    if threads > 1 and parts and can_share(session, parts, images, attack):
        least = max(LEAST_ROWS, -(-LEAST_BYTES // bytes_per_input(session, images[0])))
        parts = [
            (some, evaluator)
            for rows, evaluator in parts
            for some in rows.tensor_split(max(1, min(threads, MOST_PARTS, len(rows) // least)))
        ]
        if len(parts) > 1:
            return list(zip([rows for rows, _ in parts], _run(solve, parts, threads), strict=True))
    return [(rows, solve(rows, evaluator)) for rows, evaluator in parts]


def _run(solve: Callable[[Tensor, ModelEvaluator], T], parts: Sequence[Part], threads: int) -> list[T]:
    """Call a function for each part, several at a time."""
    workers, cancelled = min(threads, len(parts)), threading.Event()

    def run(rows: Tensor, evaluator: ModelEvaluator) -> T:
        with plain_passes(torch.device("cpu")):
            return solve(rows, replace(evaluator, cancelled=cancelled))

    with (
        restored_threads(),
        ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool,
    ):
        results, found = [pool.submit(run, *part) for part in parts], []
        try:
            wait(results, return_when=FIRST_EXCEPTION)
            cancelled.set()  # the others end at once where one failed
            while results:
                found.append(results.pop(0).result())
        finally:
            cancelled.set()  # on Ctrl-C too
            results.clear()  # an error refers to this frame: without the futures, no cycle keeps its tensors
        return found


def can_share(session: Session, parts: Sequence[Part], images: Tensor, attack: object | None) -> bool:
    """Whether threads can attack parts of a batch at the same time."""
    classifier = session.classifier
    if classifier.device.type != "cpu" or session.randomized is not None or attack is None or not is_value(attack):
        return False
    if any(evaluator.search_precision == "tf32" for _, evaluator in parts):  # a flag of the whole process
        return False
    return not keeps_state(session.copies.fast, classifier.cast(images[:1]))


def keeps_state(model: nn.Module, images: Tensor) -> bool:
    """Whether a pass changes what the model holds, or that cannot be seen: threads would disturb each other."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return True  # whose attributes are not Python's
    before = _state(model)
    with torch.enable_grad():
        model(images.clone().requires_grad_())
    after = _state(model)
    same = len(before) == len(after) and all(a is b and m == n for (a, m), (b, n) in zip(before, after, strict=True))
    return not same or len(before) > MOST_OBJECTS


def _state(model: nn.Module) -> list[tuple[object, int]]:
    """All that the model refers to, with a number that tells when a tensor is changed in place."""
    found: list[tuple[object, int]] = []
    seen: set[int] = set()
    stack: list[object] = [model]
    while stack and len(found) <= MOST_OBJECTS:
        each = stack.pop()
        if isinstance(each, Tensor):
            found.append((each, 0 if each.is_inference() else each._version))
            continue
        found.append((each, 0))
        if id(each) not in seen and not isinstance(each, type | ModuleType):
            seen.add(id(each))
            stack += _inside(each)
    return found


def _inside(each: object) -> list[object]:
    """The objects that one refers to: of a container, an instance, a method, or the variables around a function."""
    if isinstance(each, dict):
        return list(each.values())
    if isinstance(each, list | tuple | set | deque):
        return list(each)
    found: list[object] = []
    for cell in getattr(each, "__closure__", None) or ():
        with suppress(ValueError):  # nothing is in it yet
            found.append(cell.cell_contents)
    return [*found, getattr(each, "__self__", None), *getattr(each, "__dict__", {}).values()]
