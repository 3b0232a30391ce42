"""The run-time checks of annotations, which all tests rely on, find what they must."""

import importlib
import sys
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import type_checks
from beartype.roar import BeartypeCallHintViolation

MODULE = """
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from torch import Tensor
from marginattack.core.types import Logits, Mask, Points

if TYPE_CHECKING:
    from nowhere import Unknown


def total(count: int) -> int:
    return count if count else "none"

def choose(points: Points, mask: Mask | None = None) -> Points:
    return points if mask is None else points[:, :1]

def each(pairs: list[tuple[Points, Logits]]) -> None: ...

def later(value: int, other: "Unknown") -> None: ...

@contextmanager
def opened(points: Points, mask: Mask) -> Iterator[Points]:
    yield points

@dataclass(frozen=True)
class Pair:
    points: Points
    mask: Mask

    def of(self, points: Points, mask: Mask) -> int:
        return choose(points[:1]).shape[0]

class Child(Pair): ...
"""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "checked_example.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "checked_example", raising=False)
    with type_checks.install("checked_example"):
        return importlib.import_module("checked_example")


POINTS, TWO, THREE = torch.zeros(2, 5), torch.zeros(2, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)

WRONG = {
    "a type": lambda m: m.total("1"),
    "a result's type": lambda m: m.total(0),
    "a data type": lambda m: m.choose(POINTS.int()),
    "the number of axes": lambda m: m.choose(POINTS[0]),
    "sizes of two arguments": lambda m: m.choose(POINTS, THREE),
    "sizes of the result": lambda m: m.choose(POINTS, TWO),
    "sizes inside containers": lambda m: m.each([(POINTS, torch.zeros(3, 4))]),
    "beside an unknown name": lambda m: m.later("1", None),
    "a generator": lambda m: m.opened(POINTS, THREE).__enter__(),
    "a dataclass": lambda m: m.Pair(POINTS, THREE),
    "a subclass": lambda m: m.Child(POINTS, THREE),
    "a method": lambda m: m.Pair(POINTS, TWO).of(POINTS, THREE),
}


@pytest.mark.parametrize("what", WRONG)
def test_violation_is_found(example: Any, what: str) -> None:
    with pytest.raises((BeartypeCallHintViolation, jaxtyping.TypeCheckError)):
        WRONG[what](example)


def test_correct_calls_pass(example: Any) -> None:
    assert example.total(1) == 1
    assert example.Child(POINTS, TWO).of(POINTS[:1], TWO[:1]) == 1
    assert example.Pair(POINTS, TWO).of(POINTS, TWO) == 1  # the sizes of one call do not bind those of calls inside it
    with example.opened(POINTS, TWO) as points:
        assert points is POINTS
