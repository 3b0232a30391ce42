"""Kernels of our own for GPUs, written in Triton: what is many small ones otherwise is one here."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from marginattack.core.types import Box, Logits, Mask, Points, Scalars

if TYPE_CHECKING:
    from marginattack.core.history import Anytime

BLOCK, WIDE = 4096, 8192  # coordinates at a time, of a short row and of a long one
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
                self.level, **_shape(d),
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
                *strides, d, memory, growth, lo.numel() > 1, hi.numel() > 1, self.level, **_shape(d),
            )  # fmt: skip
        return *after, widest

    def judged(
        self, x: Points, x0: Points, lo: Box, hi: Box, crossed: Mask, best: Points, distance: Scalars,
        record: "Anytime", aim: Tensor, passes: int,
    ) -> None:  # fmt: skip
        """``Problem._judge`` and ``Anytime.see`` of all samples after a look of so many passes, in place."""
        n, d = x.shape
        points = record.seen.shape[1]
        with torch.cuda.device_of(x):
            _judged[(n,)](
                x.contiguous(), x0.contiguous(), *_whole(lo, hi, x), crossed, best, distance, record.passes,
                record.best, record.seen, record.grid, aim, passes, d, points, lo.numel() > 1, hi.numel() > 1,
                self.level, slots=triton.next_power_of_2(points), **_shape(d),
            )  # fmt: skip


def tried() -> None:
    """Run every kernel once; whatever is wrong with them here is raised."""
    from marginattack.core.history import Anytime

    x = torch.ones(1, 2, device="cuda")
    one, aim = x[:, :1].clone(), torch.ones(1, 2, dtype=torch.int64, device="cuda")
    _, crossed, _ = margin(x, aim, 0.0, 0.0)
    for level in (False, True):
        kernels = Kernels(level)
        kernels.onto_plane(x, x, one, 0 * one, one)
        kernels.descended((x, x, one, one, one), (one, one, one), one, x, x, 0 * one, one, memory=0.0, growth=0.0)
        kernels.judged(x, x, 0 * one, one, crossed, x.clone(), one.clone(), Anytime(1, x), aim, 2)
    torch.cuda.synchronize()


def margin(logits: Logits, aim: Tensor, rounding: float, least: float) -> tuple[Tensor, Mask, Logits]:
    """``losses.MARGIN`` as ``looks.look`` has it: raised by what rounding can hide; who has crossed; its slopes."""
    logits, aim = logits.detach().contiguous(), aim.contiguous()
    n, classes = logits.shape
    value, crossed, slopes = logits.new_empty(n), aim.new_empty(n, dtype=torch.bool), torch.empty_like(logits)
    with torch.cuda.device_of(logits):
        _margin[(n,)](
            logits, aim, value, crossed, slopes, classes, rounding, least, torch.finfo(torch.float32).max,
            **_shape(classes),
        )  # fmt: skip
    return value, crossed, slopes


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
    size, dual = _sizes(x, x0, g, d, level, block)
    size, dual = size.to(rho.dtype), dual.to(rho.dtype)
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
def _sizes(x, x0, g, d, level: tl.constexpr, block: tl.constexpr):
    """The norm of x − x₀, and the dual norm of g."""
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
    size = tl.max(apart) if level else tl.sqrt(tl.sum(apart))
    dual = tl.sum(steep) if level else tl.sqrt(tl.sum(steep))
    return size, dual


@triton.jit
def _way(mean, peak, a):
    """sign(u) |u|^a, u = mean / peak."""
    u = tl.abs(mean) / peak
    size = tl.where(u > 0, tl.exp(a * tl.log(tl.where(u > 0, u, 1.0))), 0.0)
    return tl.where(mean < 0, -size, size)


def _shape(d: int) -> dict[str, int]:
    """How a row is gone through: a long one by more threads, so that more of it is on its way at a time."""
    if d > 4 * BLOCK:
        return {"block": WIDE, "num_warps": 32}
    return {"block": min(BLOCK, triton.next_power_of_2(d)), "num_warps": 8}


def _whole(lo: Box, hi: Box, x: Points) -> list[Tensor]:
    """Walls as the kernels read them: a number, or one a coordinate."""
    return [wall.expand(1, x.shape[1]).contiguous() if wall.numel() > 1 else wall for wall in (lo, hi)]


@triton.jit
def _margin(logits, aim, value, crossed, slopes, classes, rounding, least, largest, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits, slopes = logits + row * classes, slopes + row * classes
    label, sign = tl.load(aim + 2 * row), tl.load(aim + 2 * row + 1)
    own = tl.load(logits + label)
    columns = tl.arange(0, block)
    highest, peaks = tl.full([block], float("-inf"), own.dtype), tl.zeros([block], own.dtype)
    strange = tl.zeros([block], own.dtype)
    for first in range(0, classes, block):
        at = first + columns
        here = tl.load(logits + at, at < classes, float("-inf"))
        strange += tl.where(here != here, 1.0, 0.0)
        highest = tl.maximum(highest, tl.where(at == label, float("-inf"), here))
        peaks = tl.maximum(peaks, tl.where(at < classes, tl.abs(here), 0.0))
    other = tl.max(highest)
    sure = tl.sum(strange) == 0
    size = tl.minimum(tl.max(peaks), 100 * (tl.abs(own) + tl.abs(other)))
    lead = tl.maximum(rounding * size, least)
    c = sign * (own - other) + lead
    number = c == c
    tl.store(value + row, tl.where(sure, tl.where(number, tl.minimum(tl.maximum(c, -largest), largest), 0.0), 0.0))
    tl.store(crossed + row, tl.where(sure, c < 0, False))
    equal = tl.zeros([block], own.dtype)  # equal ones share the slope, as they do in amax
    for first in range(0, classes, block):
        at = first + columns
        here = tl.load(logits + at, at < classes, float("-inf"))
        equal += tl.where(at == label, 0.0, tl.where(at < classes, tl.where(here == other, 1.0, 0.0), 0.0))
    share = 1 / tl.maximum(tl.sum(equal), 1.0)
    for first in range(0, classes, block):
        at = first + columns
        here = tl.load(logits + at, at < classes, float("-inf"))
        slope = tl.where(at == label, 1.0, tl.where(here == other, -share, 0.0))
        tl.store(slopes + at, tl.where(sure, sign * slope, 0.0), at < classes)


@triton.jit
def _judged(
    x, x0, lo, hi, crossed, best, distance, spent, nearest, seen, grid, aim, passes, d, points,
    many_lo: tl.constexpr, many_hi: tl.constexpr, level: tl.constexpr, block: tl.constexpr, slots: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, x0, best = x + row * d, x0 + row * d, best + row * d
    before = tl.load(distance + row)
    columns = tl.arange(0, block)
    far, outside = tl.zeros([block], tl.float64), tl.zeros([block], tl.int32)
    for first in range(0, d, block):
        at = first + columns
        here = tl.load(x + at, at < d, 0.0)
        low, high = _walls(lo, hi, at, d, many_lo, many_hi)
        inside = tl.where(here >= low, tl.where(here <= high, 0, 1), 1)
        outside += tl.where(at < d, inside, 0)
        move = (here - tl.load(x0 + at, at < d, 0.0)).to(tl.float64)
        if level:
            far = tl.maximum(far, tl.abs(move))
        else:
            far += move * move
    size = tl.max(far) if level else tl.sqrt(tl.sum(far))
    size = size.to(before.dtype)
    found = tl.where(tl.sum(outside) == 0, tl.load(crossed + row).to(tl.int32), 0)
    size = tl.where(found > 0, size, float("inf"))
    if size < before:
        tl.store(distance + row, size)
        for first in range(0, d, block):
            at = first + columns
            tl.store(best + at, tl.load(x + at, at < d, 0.0), at < d)
    total = tl.load(spent + row) + passes * tl.abs(tl.load(aim + 2 * row + 1))
    ever = tl.minimum(tl.load(nearest + row), size)
    tl.store(spent + row, total)
    tl.store(nearest + row, ever)
    numbers = tl.arange(0, slots)
    marks = tl.load(grid + numbers, numbers < points, float("inf"))
    slot = tl.sum(tl.where(marks < total.to(tl.float64), 1, 0))
    tl.store(seen + row * points + tl.minimum(slot, points - 1), ever)
