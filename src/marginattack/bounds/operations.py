r"""Affine operations of a network, applied backwards to linear functions, with bounds of their rounding errors.

An affine operation is z = L(x) + b. Propagating a bound backwards replaces Aᵀz by (Lᵀ A)ᵀx + Aᵀb. The same operation
with absolute weights gives the magnitude |L| |x| + |b|, from which the rounding errors follow: a sum of k products in
any order errs by at most k u / (1 − k u) times its magnitude, u the unit roundoff.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from marginattack.errors import InputError

Shape = tuple[int, ...]
Corner = tuple[int, int]
FEW_CHANNELS = 4  # input channels: up to here a matrix product is faster than a transposed convolution


def require_precision(dtype: torch.dtype) -> None:
    """Raise InputError unless a model computes in float32 or float64."""
    if dtype not in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"model computes in {name}: bounds need float32 or float64, such as model.float()")


def rounding(terms: int, dtype: torch.dtype) -> float:
    """The largest relative error of a sum of this many products."""
    error = (terms + 2) * torch.finfo(dtype).eps / 2
    return error / (1 - error) if error < 1 else float("inf")


@dataclass(frozen=True, eq=False)
class Rows:
    """Linear functions of one node's values: (n, rows, …), or of a window of the last two axes from ``corner``."""

    a: Tensor
    corner: Corner | None = None

    def crop(self, values: Tensor) -> Tensor:
        """Values (…, height, width) of the node, restricted to the window."""
        if self.corner is None:
            return values
        (top, left), (height, width) = self.corner, self.a.shape[-2:]
        return values[..., top : top + height, left : left + width]

    def widen(self, shape: Shape) -> "Rows":
        """The same functions without a window."""
        if self.corner is None:
            return self
        (top, left), (height, width) = self.corner, self.a.shape[-2:]
        pad = (left, shape[-1] - left - width, top, shape[-2] - top - height)
        return Rows(functional.pad(self.a, pad))

    def add(self, other: "Rows", shape: Shape) -> "Rows":
        """The sum of both functions."""
        if self.corner == other.corner and self.a.shape == other.a.shape:
            return Rows(self.a + other.a, self.corner)
        return Rows(self.widen(shape).a + other.widen(shape).a)

    def dot(self, values: Tensor) -> Tensor:
        """Σ a · values per row: (n, rows); values are (n or 1, 1, …)."""
        return (self.a.flatten(2) @ self.crop(values).flatten(2).mT)[..., 0]

    def charge(self, errors: Tensor) -> Tensor:
        """Σ |a| · errors per row."""
        return Rows(self.a.abs(), self.corner).dot(errors)


@dataclass(frozen=True, eq=False, kw_only=True)
class Affine:
    """z = L(x₁, x₂, …) + b; ``linear(weight, x₁, …)`` is L, and with the absolute weight |L|."""

    linear: Callable[..., Tensor]
    weight: Tensor | None = None
    bias: Tensor | None = None  # broadcasts against one output
    bias_magnitude: Tensor | None = None  # |bias|, or more where the model computes it as a difference
    fan_in: int = 0  # products per output; 0: nothing is rounded
    fan_out: int = 0  # products per input, applied backwards

    def to(self, dtype: torch.dtype) -> "Affine":
        """The operation in another precision."""
        parts = (self.weight, self.bias, self.bias_magnitude)
        weight, bias, size = (None if each is None else each.to(dtype) for each in parts)
        return replace(self, weight=weight, bias=bias, bias_magnitude=size)

    def value(self, *inputs: Tensor) -> Tensor:
        """L(x) + b for inputs (n, …)."""
        out = self.linear(self.weight, *inputs)
        return out if self.bias is None else out + self.bias

    def spread(self, *radii: Tensor) -> Tensor:
        """|L| r"""
        return self.linear(None if self.weight is None else self.weight.abs(), *radii)

    def magnitude(self, *sizes: Tensor) -> Tensor:
        """|L| |x| + |b|"""
        out = self.spread(*sizes)
        magnitude = self.bias.abs() if self.bias_magnitude is None and self.bias is not None else self.bias_magnitude
        return out if magnitude is None else out + magnitude

    def transpose(self, rows: Rows, shape: Shape, shapes: Sequence[Shape]) -> list[Rows]:
        """Lᵀ A, one for each input."""
        a = rows.widen(shape).a
        n = a.shape[:2]
        with torch.enable_grad():
            inputs = [a.new_zeros(n[0] * n[1], *each, requires_grad=True) for each in shapes]
            out = self.linear(self.weight, *inputs)
        found = torch.autograd.grad(out, inputs, a.flatten(0, 1), create_graph=a.requires_grad)
        return [Rows(each.unflatten(0, n)) for each in found]


class Dense(Affine):
    """A fully connected layer on the last axis."""

    def transpose(self, rows: Rows, shape: Shape, shapes: Sequence[Shape]) -> list[Rows]:
        assert self.weight is not None
        return [Rows(rows.widen(shape).a @ self.weight)]


class Diagonal(Affine):
    """A scale per coordinate; its weight broadcasts against one output."""

    def transpose(self, rows: Rows, shape: Shape, shapes: Sequence[Shape]) -> list[Rows]:
        assert self.weight is not None
        if shapes[0] != shape:
            return super().transpose(rows, shape, shapes)
        return [Rows(rows.a * rows.crop(self.weight.expand(shape)), rows.corner)]


@dataclass(frozen=True)
class Sliding:
    """How a kernel slides over the last two axes."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def span(self, size: Sequence[int]) -> tuple[int, int]:
        """Height and width of the inputs that this many outputs read, padding included."""
        high, wide = ((size[i] - 1) * self.stride[i] + self.dilation[i] * (self.kernel[i] - 1) + 1 for i in range(2))
        return high, wide

    def unpad(self, rows: Rows, a: Tensor, shape: Shape) -> Rows:
        """Functions of what the outputs of ``rows`` read, as functions of the inputs: the padding is cut off."""
        corner = rows.corner or (0, 0)
        first = [corner[i] * self.stride[i] - self.padding[i] for i in range(2)]
        top, left = (max(0, -each) for each in first)
        low, right = (min(a.shape[i - 2], shape[i - 2] - first[i]) for i in range(2))
        if low <= top or right <= left:  # only padding
            return Rows(a.new_zeros(*a.shape[:2], *shape))
        return Rows(a[..., top:low, left:right], (max(0, first[0]), max(0, first[1])))


@dataclass(frozen=True, eq=False, kw_only=True)
class Convolution(Affine):
    """A two-dimensional convolution."""

    sliding: Sliding
    groups: int = 1

    def transpose(self, rows: Rows, shape: Shape, shapes: Sequence[Shape]) -> list[Rows]:
        assert self.weight is not None
        s, a = self.sliding, rows.a.flatten(0, 1)
        if self.groups == 1 and self.weight.shape[1] <= FEW_CHANNELS:
            columns = self.weight.flatten(1).mT @ a.flatten(2)
            a = functional.fold(columns, s.span(a.shape[-2:]), s.kernel, s.dilation, 0, s.stride)
        else:
            a = functional.conv_transpose2d(a, self.weight, stride=s.stride, groups=self.groups, dilation=s.dilation)
        return [s.unpad(rows, a.unflatten(0, rows.a.shape[:2]), shapes[0])]


class Sum(Affine):
    """A sum of inputs of the same shape, each with a scalar weight."""

    def transpose(self, rows: Rows, shape: Shape, shapes: Sequence[Shape]) -> list[Rows]:
        assert self.weight is not None
        if any(each != shape for each in shapes):
            return super().transpose(rows, shape, shapes)
        return [Rows(rows.a * w, rows.corner) for w in self.weight.tolist()]


def weighted_sum(weight: Tensor, *inputs: Tensor) -> Tensor:
    """Σ wᵢ xᵢ"""
    total: Any = sum(w * x for w, x in zip(weight, inputs, strict=True))
    return torch.as_tensor(total)
