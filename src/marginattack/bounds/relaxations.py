r"""Linear relaxations: two lines that enclose a non-linear operation on an interval [l, u] of its input.

========================  ==========================================  =================================================
operation                 lower line                                  upper line
========================  ==========================================  =================================================
ReLU, LeakyReLU           slope α through 0, free between both        the chord
                          slopes; CROWN: the steeper where u > −l
GELU, SiLU, sigmoid,      slope free (CROWN: the chord's); the offset from 48 points of the interval, lowered or
tanh                      raised by what the curvature allows in between
max-pooling               the input with the largest lower bound m    m + Σ of the chords of max(x − m, 0), or the
                                                                      largest upper bound, whichever is lower mid-way
========================  ==========================================  =================================================

Every slope gives a valid line; α-CROWN searches for the best ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from marginattack.bounds.operations import Rows, Shape, Sliding, rounding

POINTS = 48  # per interval, for smooth activations
ACTIVATION_UNITS = 16  # rounding errors of a smooth activation, in unit roundoffs; CUDA documents 1 to 4


@dataclass(frozen=True, eq=False)
class Lines:
    """lower_slope x + lower_offset ≤ f(x) ≤ upper_slope x + upper_offset, per neuron: (n, 1 or rows, …)."""

    lower_slope: Tensor
    upper_slope: Tensor
    upper_offset: Tensor
    lower_offset: Tensor | None = None  # None: 0

    @property
    def largest_offset(self) -> Tensor:
        """The larger absolute value of both offsets."""
        upper = self.upper_offset.abs()
        return upper if self.lower_offset is None else torch.maximum(upper, self.lower_offset.abs())

    def select(self, rows: Rows, a: Tensor) -> Tensor:
        """Coefficients times the slope for their sign: one of the two products is 0, so nothing is rounded."""
        lower, upper = rows.crop(self.lower_slope), rows.crop(self.upper_slope)
        return torch.addcmul(a.clamp(min=0) * lower, a.clamp(max=0), upper)

    def constant(self, rows: Rows) -> Tensor:
        """The constants of rows of the output: the upper offset for negative coefficients, else the lower one."""
        found = Rows(rows.a.clamp(max=0), rows.corner).dot(self.upper_offset)
        if self.lower_offset is None:
            return found
        return found + Rows(rows.a.clamp(min=0), rows.corner).dot(self.lower_offset)


class NonLinear(ABC):
    """An operation with one input that is enclosed by lines."""

    name: str
    points = 1  # at which the operation is evaluated for a line

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """The operation itself."""

    @abstractmethod
    def image(self, lo: Tensor, hi: Tensor, model: torch.dtype) -> tuple[Tensor, Tensor]:
        """Bounds of the output for inputs in [lo, hi], in real arithmetic and as the model computes it."""

    @abstractmethod
    def undecided(self, lo: Tensor, hi: Tensor) -> Tensor:
        """The inputs for which tighter bounds would give tighter lines."""

    @abstractmethod
    def start(self, lo: Tensor, hi: Tensor, rows: int) -> list[Tensor]:
        """The free slopes of CROWN, for α-CROWN to improve on; empty if none is free."""

    @abstractmethod
    def lines(self, lo: Tensor, hi: Tensor, slopes: list[Tensor]) -> Lines:
        """The lines with these slopes, or with those of CROWN if the list is empty."""

    @abstractmethod
    def backward(self, rows: Rows, lines: Lines, shape: Shape) -> tuple[Rows, Tensor]:
        """Rows A of the output as rows of the input and constants: their sum is at most Aᵀf(x)."""

    @abstractmethod
    def errors(self, lo: Tensor, hi: Tensor, lines: Lines, model: torch.dtype) -> Tensor:
        """Rounding errors per output: those of the model, and those of ``backward`` per unit of |A|."""


class _Elementwise(NonLinear):
    def backward(self, rows: Rows, lines: Lines, shape: Shape) -> tuple[Rows, Tensor]:
        return Rows(lines.select(rows, rows.a), rows.corner), lines.constant(rows)


@dataclass(frozen=True)
class ReLU(_Elementwise):
    """max(x, s x) with the slope s for negative inputs, 0 ≤ s ≤ 1."""

    name: str = "relu"
    slope: float = 0.0

    def value(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.slope)

    def image(self, lo: Tensor, hi: Tensor, model: torch.dtype) -> tuple[Tensor, Tensor]:
        low, high = ((rounding(2, model) * self.slope * each.clamp(max=0)).abs() for each in (lo, hi))
        return self.value(lo) - low, self.value(hi) + high

    def undecided(self, lo: Tensor, hi: Tensor) -> Tensor:
        return (lo < 0) & (hi > 0)

    def start(self, lo: Tensor, hi: Tensor, rows: int) -> list[Tensor]:
        steep = torch.ones_like(lo).where(hi > -lo, self.slope)
        return [steep[:, None].expand(-1, rows, *lo.shape[1:])]

    def lines(self, lo: Tensor, hi: Tensor, slopes: list[Tensor]) -> Lines:
        lo, hi = lo[:, None], hi[:, None]
        (free,) = slopes or self.start(lo[:, 0], hi[:, 0], 1)
        stable = torch.ones_like(lo).where(lo >= 0, self.slope)
        crossing = self.undecided(lo, hi)
        lower = torch.where(crossing, free.clamp(self.slope, 1.0), stable)
        ends = self.value(lo), self.value(hi)
        chord = torch.where(crossing, (ends[1] - ends[0]) / (hi - lo).clamp(min=torch.finfo(lo.dtype).tiny), stable)
        # f is convex: above a line, it rises highest at an end of the interval.
        offset = torch.maximum(ends[0] - chord * lo, ends[1] - chord * hi)
        offset = offset + rounding(4, lo.dtype) * torch.maximum(lo.abs(), hi.abs()) * 2
        return Lines(lower, chord, torch.where(crossing, offset, 0))

    def errors(self, lo: Tensor, hi: Tensor, lines: Lines, model: torch.dtype) -> Tensor:
        size = torch.maximum(lo.abs(), hi.abs())[:, None]
        own = rounding(4, lo.dtype) * size + rounding(lo[0].numel(), lo.dtype) * lines.largest_offset
        return own + (rounding(2, model) * size if self.slope else 0)


@dataclass(frozen=True)
class Smooth(_Elementwise):
    """An activation with a bounded second derivative, which falls to the left of at most one point and rises after."""

    name: str
    function: Callable[[Tensor], Tensor]
    curvature: float  # at least max |f''|
    turning: float | None = None  # the minimiser of f; None: f rises everywhere
    points = POINTS

    def value(self, x: Tensor) -> Tensor:
        return self.function(x)

    def image(self, lo: Tensor, hi: Tensor, model: torch.dtype) -> tuple[Tensor, Tensor]:
        ends = self.function(lo), self.function(hi)
        low = torch.minimum(*ends)
        if self.turning is not None:
            least = self.function(torch.full_like(lo, self.turning))
            low = torch.where((lo < self.turning) & (hi > self.turning), least - 1e-9, low)
        high = torch.maximum(*ends)
        error = (rounding(ACTIVATION_UNITS, lo.dtype) + rounding(ACTIVATION_UNITS, model)) * self._size(lo, hi)
        return low - error, high + error

    def _size(self, lo: Tensor, hi: Tensor) -> Tensor:
        """The magnitude that rounding errors are relative to: x Φ(x) and the like cancel for x far below 0."""
        ends = (lo, hi) if self.turning is not None else (self.function(lo), self.function(hi))
        return torch.maximum(*(each.abs() for each in ends))

    def undecided(self, lo: Tensor, hi: Tensor) -> Tensor:
        return torch.ones_like(lo, dtype=torch.bool)

    def start(self, lo: Tensor, hi: Tensor, rows: int) -> list[Tensor]:
        """Deviations from the slope of the chord, in units of the largest possible deviation of slopes of f."""
        return [torch.zeros_like(lo)[:, None] for _ in range(2)]

    def lines(self, lo: Tensor, hi: Tensor, slopes: list[Tensor]) -> Lines:
        width = hi - lo
        chord = (self.function(hi) - self.function(lo)) / width.clamp(min=torch.finfo(lo.dtype).tiny)
        chord = torch.where(width > 1e-4, chord, 0)[:, None]
        free = self.curvature * width[:, None]
        lower, upper = (chord + each * free for each in slopes or self.start(lo, hi, 1))
        lo, hi = lo[:, None, ..., None], hi[:, None, ..., None]
        x = torch.lerp(lo, hi, torch.linspace(0, 1, POINTS, dtype=lo.dtype, device=lo.device))
        y = self.function(x)
        step = (hi - lo)[..., 0] / (POINTS - 1)
        size = torch.maximum(lo.abs(), hi.abs())[..., 0]
        # Between two points a step apart a function departs from its chord by at most curvature · step² / 8.
        gap = self.curvature * step.square() / 8 * 1.001
        error = rounding(ACTIVATION_UNITS, lo.dtype) * (y.abs().amax(-1) + size * (1 + lower.abs() + upper.abs()))
        low = (y - lower[..., None] * x).amin(-1) - gap - error
        high = (y - upper[..., None] * x).amax(-1) + gap + error
        return Lines(lower, upper, high, low)

    def errors(self, lo: Tensor, hi: Tensor, lines: Lines, model: torch.dtype) -> Tensor:
        size = torch.maximum(lo.abs(), hi.abs())[:, None]
        slopes = torch.maximum(lines.upper_slope.abs(), lines.lower_slope.abs())
        own = rounding(4, lo.dtype) * size * slopes + rounding(2 * lo[0].numel(), lo.dtype) * lines.largest_offset
        return own + rounding(ACTIVATION_UNITS, model) * self._size(lo, hi)[:, None]


@dataclass(frozen=True)
class MaxPool(NonLinear):
    """Max-pooling over the last two axes."""

    name: str
    sliding: Sliding

    def value(self, x: Tensor) -> Tensor:
        s = self.sliding
        return functional.max_pool2d(x, s.kernel, s.stride, s.padding, s.dilation)

    def image(self, lo: Tensor, hi: Tensor, model: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.value(lo), self.value(hi)

    def undecided(self, lo: Tensor, hi: Tensor) -> Tensor:
        return torch.ones_like(lo, dtype=torch.bool)

    def start(self, lo: Tensor, hi: Tensor, rows: int) -> list[Tensor]:
        return []

    def lines(self, lo: Tensor, hi: Tensor, slopes: list[Tensor]) -> Lines:
        """Slopes are (n, 1, channels, kernel, height, width) here."""
        low, high = self.windows(lo), self.windows(hi)
        largest, best = low.max(2, keepdim=True)
        chosen = torch.zeros_like(low).scatter(2, best, 1)
        above = (high - largest).clamp(min=0)  # how far each other input can exceed the largest lower bound m
        chord = torch.where(chosen > 0, 1, above / (high - low).clamp(min=torch.finfo(lo.dtype).tiny)).clamp(0, 1)
        # max x = x_best + max(x_j − x_best, 0) ≤ x_best + Σ_j (c_j (x_j − u_j) + above_j): the line is right at u_j
        # and, since c_j (u_j − l_j) ≤ above_j up to rounding, not below m at l_j.
        other = torch.where(chosen > 0, 0, 1)
        slack = rounding(8, lo.dtype) * torch.where(above > 0, high.abs() + low.abs(), 0)
        terms = torch.where(other * above > 0, above - chord * high + slack, 0)
        middle = torch.where(other * above > 0, above - chord * (high - low) / 2, 0).sum(2, keepdim=True)
        top = high.amax(2, keepdim=True)
        half = (low + high).mul(0.5).gather(2, best)
        flat = top < half + middle
        chord = torch.where(other * above > 0, chord, chosen)
        upper = torch.where(flat, 0, chord)
        offset = torch.where(flat, top, terms.sum(2, keepdim=True))
        offset = offset + rounding(8, lo.dtype) * offset.abs()
        return Lines(chosen[:, None], upper[:, None], offset[:, None, :, 0])

    def backward(self, rows: Rows, lines: Lines, shape: Shape) -> tuple[Rows, Tensor]:
        spread = rows.a[:, :, :, None]
        a = lines.select(rows, spread)
        s = self.sliding
        size = s.span(rows.a.shape[-2:])
        folded = functional.fold(a.flatten(0, 1).flatten(1, 2).flatten(2), size, s.kernel, s.dilation, 0, s.stride)
        return s.unpad(rows, folded.unflatten(0, rows.a.shape[:2]), shape), lines.constant(rows)

    def errors(self, lo: Tensor, hi: Tensor, lines: Lines, model: torch.dtype) -> Tensor:
        size = self.windows(torch.maximum(lo.abs(), hi.abs()), 0.0)[:, None].sum(3)
        terms = self.sliding.kernel[0] * self.sliding.kernel[1]
        return rounding(4 + terms, lo.dtype) * size + rounding(size[0].numel(), lo.dtype) * lines.largest_offset

    def windows(self, values: Tensor, outside: float | None = None) -> Tensor:
        """The inputs of each output: (n, channels, kernel, height, width); padding is never the largest."""
        s = self.sliding
        outside = -1e30 if outside is None else outside
        pad = (s.padding[1], s.padding[1], s.padding[0], s.padding[0])
        padded = functional.pad(values, pad, value=outside)
        size = [(padded.shape[i - 2] - s.dilation[i] * (s.kernel[i] - 1) - 1) // s.stride[i] + 1 for i in range(2)]
        found = functional.unfold(padded, s.kernel, s.dilation, 0, s.stride)
        return found.view(len(values), values.shape[1], -1, *size)
