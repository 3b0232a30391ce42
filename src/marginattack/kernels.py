"""Kernels of our own for GPUs, written in Triton: what is many small ones otherwise is one here."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from marginattack.shapes import Box, Points, Scalars

BLOCK = 4096  # coordinates at a time
MOST = 100  # steps of Newton's method at most
TINY = tl.constexpr(1e-30)


@dataclass(frozen=True)
class Kernels:
    """What a norm can have as one kernel, a program a row: ℓ∞ (level: every coordinate advances alike) or ℓ2."""

    level: bool

    def onto_plane(self, x: Points, g: Points, r: Scalars, lo: Box, hi: Box) -> Points:
        """``Norm.onto_plane``."""
        x, g = x.contiguous(), g.contiguous()
        z, (n, d) = torch.empty_like(x), x.shape
        settled = 4 * torch.finfo(x.dtype).eps
        with torch.cuda.device_of(x):
            _onto_plane[(n,)](
                x, g, r.contiguous(), *_whole(lo, hi, x), z, d, settled, MOST, lo.numel() > 1, hi.numel() > 1,
                self.level, min(BLOCK, triton.next_power_of_2(d)), num_warps=8,
            )  # fmt: skip
        return z

    def descended(
        self, state: Sequence[Tensor], now: Sequence[Tensor], c: Scalars, g: Points, x0: Points, lo: Box, hi: Box,
        *, memory: float, growth: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The state after ``Descent.moved``."""
        x, v, radius, found, widest = (tensor.contiguous() for tensor in state)
        after = [torch.empty_like(tensor) for tensor in (x, v, radius, found)]
        (n, d), walls = x.shape, _whole(lo, hi, x)
        strides = [number.stride(0) if len(number) > 1 else 0 for number in now]
        with torch.cuda.device_of(x):
            _descended[(n,)](
                x, v, radius, found, widest, *after, c.contiguous(), g.contiguous(), x0.contiguous(), *walls, *now,
                *strides, d, memory, growth, lo.numel() > 1, hi.numel() > 1, self.level,
                min(BLOCK, triton.next_power_of_2(d)), num_warps=8,
            )  # fmt: skip
        return *after, widest


@triton.jit
def _onto_plane(
    x, g, r, lo, hi, z, d, settled, most,
    many_lo: tl.constexpr, many_hi: tl.constexpr, level: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, g, z = x + row * d, g + row * d, z + row * d
    r = tl.load(r + row)
    columns = tl.arange(0, block)
    top = tl.zeros([block], r.dtype)
    for first in range(0, d, block):
        here = first + columns
        top = tl.maximum(top, tl.abs(tl.load(g + here, here < d, 0.0)))
    peak = tl.max(top)
    scale = tl.where(peak > 0, peak, 1.0)
    aim = tl.where(peak > 0, tl.abs(r) / scale, 0.0)
    pace = peak * 0.0  # how far every coordinate has advanced, over its own pace
    reach, steps = peak * 0.0, most
    while steps > 0:
        slope, got, room_left = tl.zeros([block], r.dtype), tl.zeros([block], r.dtype), tl.zeros([block], r.dtype)
        for first in range(0, d, block):
            here = first + columns
            weight, room, _, _ = _row(x, g, r, lo, hi, here, d, scale, many_lo, many_hi)
            speed = weight * 0.0 + 1.0 if level else weight
            t = tl.minimum(pace * speed, room)
            slope += tl.where(t < room, weight * speed, 0.0)
            got += weight * t
            room_left += weight * room
        reach = tl.sum(room_left)
        total = tl.sum(slope)
        missing = tl.where(reach > aim, tl.where(total > 0, aim - tl.sum(got), 0.0), 0.0)
        pace += missing / tl.where(total > TINY, total, TINY)
        steps = tl.where(missing > settled * aim, steps - 1, 0)
    for first in range(0, d, block):
        here = first + columns
        weight, room, heading, start = _row(x, g, r, lo, hi, here, d, scale, many_lo, many_hi)
        speed = weight * 0.0 + 1.0 if level else weight
        t = tl.where(reach > aim, tl.maximum(tl.minimum(pace * speed, room), 0.0), room)
        low, high = _walls(lo, hi, here, d, many_lo, many_hi)
        tl.store(z + here, tl.minimum(tl.maximum(start + heading * t, low), high), here < d)


@triton.jit
def _walls(lo, hi, here, d, many_lo: tl.constexpr, many_hi: tl.constexpr):
    low = tl.load(lo + here, here < d, 0.0) if many_lo else tl.load(lo)
    high = tl.load(hi + here, here < d, 0.0) if many_hi else tl.load(hi)
    return low, high


@triton.jit
def _row(x, g, r, lo, hi, here, d, scale, many_lo: tl.constexpr, many_hi: tl.constexpr):
    """The weight of these coordinates, their room to the walls that they head for, whereto, and from where."""
    slope, start = tl.load(g + here, here < d, 0.0), tl.load(x + here, here < d, 0.0)
    low, high = _walls(lo, hi, here, d, many_lo, many_hi)
    up = (slope < 0) == (r > 0)  # against the sign of r g
    weight = tl.abs(slope) / scale
    room = tl.maximum(tl.where(up, high - start, start - low), 0.0)
    room = tl.where(weight * tl.abs(r) > 0, room, 0.0)
    return weight, room, tl.where(up, 1.0, -1.0), start


@triton.jit
def _descended(
    x, v, radius, found, widest, x_, v_, radius_, found_, c, g, x0, lo, hi, eta, gamma, a, s_eta, s_gamma, s_a,
    d, memory, growth,
    many_lo: tl.constexpr, many_hi: tl.constexpr, level: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, v, g, x0, x_, v_ = x + row * d, v + row * d, g + row * d, x0 + row * d, x_ + row * d, v_ + row * d
    here, rho, seen = tl.load(c + row), tl.load(radius + row), tl.load(found + row)
    eta, gamma, a = tl.load(eta + row * s_eta), tl.load(gamma + row * s_gamma), tl.load(a + row * s_a)
    columns = tl.arange(0, block)
    apart, steep = tl.zeros([block], tl.float64), tl.zeros([block], tl.float64)
    for first in range(0, d, block):
        at = first + columns
        move = tl.load(x + at, at < d, 0.0) - tl.load(x0 + at, at < d, 0.0)
        slope = tl.load(g + at, at < d, 0.0)
        if level:
            apart, steep = tl.maximum(apart, tl.abs(move)), steep + tl.abs(slope)
        else:
            move, slope = move.to(tl.float64), slope.to(tl.float64)
            apart, steep = apart + move * move, steep + slope * slope
    if level:
        size, dual = tl.max(apart).to(rho.dtype), tl.sum(steep).to(rho.dtype)
    else:
        size, dual = tl.sqrt(tl.sum(apart)).to(rho.dtype), tl.sqrt(tl.sum(steep)).to(rho.dtype)
    dual = tl.maximum(dual, TINY)
    rho = tl.where(rho > 0, rho, tl.maximum(here / dual, TINY))
    seen = tl.where(here < 0, 1.0, seen).to(rho.dtype)
    wider = 1 + tl.where(seen > 0, gamma, tl.maximum(gamma, growth))
    rho = tl.where(here < 0, tl.minimum(rho, size) * (1 - gamma), rho * wider)
    rho = tl.minimum(rho, tl.load(widest + row)).to(eta.dtype)
    tl.store(radius_ + row, rho)
    tl.store(found_ + row, seen)
    top = tl.zeros([block], rho.dtype)
    for first in range(0, d, block):
        at = first + columns
        mean = memory * tl.load(v + at, at < d, 0.0) + tl.load(g + at, at < d, 0.0) / dual
        mean = mean.to(rho.dtype)
        tl.store(v_ + at, mean, at < d)
        top = tl.maximum(top, tl.abs(mean))
    peak = tl.maximum(tl.max(top), TINY)
    length = tl.zeros([block], tl.float64)
    if not level:
        for first in range(0, d, block):
            at = first + columns
            way = _way(tl.load(v_ + at, at < d, 0.0), peak, a).to(tl.float64)
            length += way * way
    span = tl.sqrt(tl.sum(length)).to(rho.dtype)
    span = tl.where(span > 0, span, 1.0)
    far = tl.zeros([block], tl.float64)
    if not level:
        for first in range(0, d, block):
            at = first + columns
            way = _way(tl.load(v_ + at, at < d, 0.0), peak, a) / span
            move = tl.load(x + at, at < d, 0.0) - eta * rho * way - tl.load(x0 + at, at < d, 0.0)
            move = move.to(tl.float64)
            far += move * move
    reach = tl.sqrt(tl.sum(far)).to(rho.dtype)
    for first in range(0, d, block):
        at = first + columns
        centre = tl.load(x0 + at, at < d, 0.0)
        mean = tl.load(v_ + at, at < d, 0.0)
        if level:
            way = tl.where(mean > 0, 1.0, tl.where(mean < 0, -1.0, 0.0))
            goal = tl.load(x + at, at < d, 0.0) - eta * rho * way
            goal = tl.minimum(tl.maximum(goal, centre - rho), centre + rho)
        else:
            goal = tl.load(x + at, at < d, 0.0) - eta * rho * _way(mean, peak, a) / span
            goal = tl.where(reach > rho, centre + (goal - centre) * (rho / reach), goal)
        low, high = _walls(lo, hi, at, d, many_lo, many_hi)
        tl.store(x_ + at, tl.minimum(tl.maximum(goal, low), high), at < d)


@triton.jit
def _way(mean, peak, a):
    """sign(u) |u|^a, u = mean / peak."""
    u = tl.abs(mean) / peak
    size = tl.where(u > 0, tl.exp(a * tl.log(tl.where(u > 0, u, 1.0))), 0.0)
    return tl.where(mean < 0, -size, size)


def _whole(lo: Box, hi: Box, x: Points) -> list[Tensor]:
    """Walls as the kernels read them: a number, or one a coordinate."""
    return [wall.expand(1, x.shape[1]).contiguous() if wall.numel() > 1 else wall for wall in (lo, hi)]
