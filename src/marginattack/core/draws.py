"""Random draws that depend only on (seed, sample): a hash, independent of batch size, order and device."""

from copy import copy
from operator import index
from typing import Any

import torch
from torch import Tensor

from marginattack.core.tensors import occurrence, to_device_of
from marginattack.core.types import Points
from marginattack.errors import InputError

SKIP = 1 << 20  # more draws than any attack makes


class Draws:
    """Uniform random points for the samples of a batch, new ones at each call."""

    def __init__(self, seed: int, ids: Tensor, like: Points) -> None:
        self.seed, self._ids, self._like = check_seed(seed), ids, like
        self._copy = torch.zeros_like(ids)  # which copy of its sample a row is
        self.count = 0

    def uniform(self, width: int | None = None) -> Points:
        """Numbers in [0, 1), one point per sample, or a row of this width."""
        self.count += 1
        draw = self.count + (self._copy << 32)
        return uniform(self._ids, width or self._like.shape[1], seed=self.seed, draw=draw, like=self._like)

    def fork(self) -> "Draws":
        """Draws that continue with the same numbers, independently of these."""
        return copy(self)

    def select(self, rows: Tensor) -> "Draws":
        """Draws of some samples; a sample that is named several times gets different numbers in each row."""
        selected = copy(self)
        selected._ids, selected._copy = self._ids[rows], (self._copy[rows] << 16) + occurrence(rows)
        return selected

    def skip(self) -> None:
        """Continue with numbers that no fork has drawn."""
        self.count += SKIP


def as_integer(number: Any) -> int:
    """A whole number of any library as Python's; TypeError or ValueError if it is none, also for True and False."""
    if isinstance(number, bool):
        raise TypeError(f"{number} is not a number")
    return index(number)


def check_seed(seed: Any) -> int:
    """The seed as an integer of 64 bits; InputError if it is none."""
    try:
        number = as_integer(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed is {seed!r}: give an integer, such as 0") from None
    if not -(2**63) <= number < 2**63:
        raise InputError(f"seed is {number}: give an integer of 64 bits, such as 0")
    return number


def uniform(ids: Tensor, d: int, *, seed: int, draw: Tensor, like: Tensor) -> Points:
    """Numbers in [0, 1), one row of d per sample id: the same for the same (seed, id, draw) in any batch."""
    key = to_device_of(_mix(_mix(ids + _mix(torch.tensor(check_seed(seed)))) + draw), like)
    bits = _mix(key[:, None] + torch.arange(d, device=like.device))
    return ((bits >> 40) & 0xFFFFFF).to(like.dtype) / 2**24


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's step and finaliser (Steele et al. 2014) in wrapping 64-bit integers."""
    x = x + -0x61C8864680B583EB
    x = (x ^ _shift_right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift_right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right; that of torch is arithmetic."""
    return (x >> by) & ((1 << (64 - by)) - 1)
