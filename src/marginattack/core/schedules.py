"""Step sizes as values: a schedule maps iteration k = 0 … n − 1 of n to a number."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Schedule: TypeAlias = Callable[[int, int], float]


@dataclass(frozen=True)
class Constant:
    """The same at every iteration."""

    value: float

    def __call__(self, k: int, n: int) -> float:
        return self.value


@dataclass(frozen=True)
class Power:
    """(stride·(k + first))^−exponent: the paper's β. With stride 2, projection k is move 2k + 2, and moves are counted.

    With ``first`` 2 the pairs are counted from the second one, so that β is never 1.
    """

    exponent: float
    stride: int = 1
    first: int = 1

    def __call__(self, k: int, n: int) -> float:
        return float((self.stride * (k + self.first)) ** -self.exponent)


@dataclass(frozen=True)
class Geometric:
    """From the first value to the last by equal factors."""

    first: float
    last: float

    def __call__(self, k: int, n: int) -> float:
        return float(self.first * (self.last / self.first) ** (k / max(n - 1, 1)))


@dataclass(frozen=True)
class Cosine:
    """From the first value to the last along half a cosine: slow at both ends."""

    first: float
    last: float

    def __call__(self, k: int, n: int) -> float:
        return self.last + (self.first - self.last) * (1 + math.cos(math.pi * k / max(n - 1, 1))) / 2
