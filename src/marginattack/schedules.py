"""Step sizes as values: a schedule maps the number of an iteration, from 0, to a step size."""

from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """k ↦ step size"""

    def __call__(self, k: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same at every iteration."""

    value: float

    def __call__(self, k: int) -> float:
        return self.value


@dataclass(frozen=True)
class Power:
    """(stride·k + 1)^−exponent: the paper's β with stride 1; stride 2 counts moves instead of pairs of moves."""

    exponent: float
    stride: int = 1

    def __call__(self, k: int) -> float:
        return float((self.stride * k + 1) ** -self.exponent)


@dataclass(frozen=True)
class Geometric:
    """first · ratio^k"""

    first: float
    ratio: float

    def __call__(self, k: int) -> float:
        return float(self.first * self.ratio**k)
