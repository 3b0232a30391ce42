"""Formulas of the inner loop as single GPU kernels, in Triton. The plain formulas are the specification."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from marginattack.core.box import Box
from marginattack.core.incumbent import Incumbent
from marginattack.core.types import Goals, Logits, Mask, Points, Scalars

BLOCK, WIDE_BLOCK = 4096, 8192  # coordinates at a time, of a short row and of a long one
NEWTON_STEPS = 100  # at most
TINY = tl.constexpr(1e-30)


@dataclass(frozen=True)
class Kernels:
    """The formulas of a norm as one kernel each, a program per row: ℓ∞ (``uniform``: coordinates move alike) or ℓ2."""

    uniform: bool

    def onto_plane(self, x: Points, g: Points, r: Scalars, box: Box) -> Points:
        """``norms.onto_plane``"""
        x, g = x.contiguous(), g.contiguous()
        z, (n, d) = torch.empty_like(x), x.shape
        converged = 4 * torch.finfo(x.dtype).eps
        with torch.cuda.device_of(x):
            _onto_plane[(n,)](
                x, g, r.contiguous(), *_bounds_of(box, x), z, d, converged, NEWTON_STEPS, **_flags(box),
                uniform=self.uniform, **_launch(d),
            )  # fmt: skip
        return z

    def descend(
        self, x: Points, v: Points, ball: Tensor, numbers: Tensor, c: Scalars, g: Points, x0: Points, box: Box, *,
        memory: float, growth: float,
    ) -> tuple[Points, Points, Tensor]:  # fmt: skip
        """``moves.descend``"""
        x, v, ball = x.contiguous(), v.contiguous(), ball.contiguous()
        after = torch.empty_like(x), torch.empty_like(v), torch.empty_like(ball)
        n, d = x.shape
        stride = numbers.stride(0) if len(numbers) > 1 else 0
        with torch.cuda.device_of(x):
            _descend[(n,)](
                x, v, ball, *after, c.contiguous(), g.contiguous(), x0.contiguous(), *_bounds_of(box, x), numbers,
                stride, d, memory, growth, **_flags(box), uniform=self.uniform, **_launch(d),
            )  # fmt: skip
        return after

    def record(self, x: Points, incumbent: Incumbent, crossed: Mask, goals: Goals, passes: int) -> None:
        """``Incumbent.offer`` for all samples, in place."""
        n, d = x.shape
        history, box = incumbent.history, incumbent.box
        slots = history.reached.shape[1]
        with torch.cuda.device_of(x):
            _record[(n,)](
                x.contiguous(), incumbent.x0.contiguous(), *_bounds_of(box, x), crossed, incumbent.points,
                incumbent.distance, *history.tensors, history.grid, goals, passes, d, slots, **_flags(box),
                uniform=self.uniform, slots_block=triton.next_power_of_2(slots), **_launch(d),
            )  # fmt: skip


def margin(logits: Logits, goals: Goals, relative: float, absolute: float) -> tuple[Tensor, Mask, Logits]:
    """``losses.MARGIN`` as ``queries.evaluate`` has it: raised by the tolerance; what crossed; its slopes."""
    logits, goals = logits.detach().contiguous(), goals.contiguous()
    n, classes = logits.shape
    value, crossed, slopes = logits.new_empty(n), goals.new_empty(n, dtype=torch.bool), torch.empty_like(logits)
    with torch.cuda.device_of(logits):
        _margin[(n,)](
            logits, goals, value, crossed, slopes, classes, relative, absolute, torch.finfo(torch.float32).max,
            **_launch(classes),
        )  # fmt: skip
    return value, crossed, slopes


def run_all(columns: int, classes: int) -> None:
    """Run every kernel once, on inputs and logits of these lengths; whatever is wrong with them here is raised.

    The arguments are laid out as those of an attack, so that what is compiled here serves it.
    """
    from marginattack.core.norms import L2

    x = torch.ones(2, columns, device="cuda")
    one, goals = x[:, :1].clone(), torch.ones(2, 2, dtype=torch.int64, device="cuda")
    box, state, numbers = Box(x.new_zeros(1, 1), x.new_ones(1, 1)), x.new_ones(2, 3), x.new_ones(2, 4)[:, 1:]
    _, crossed, _ = margin(x.new_ones(2, classes), goals, 0.0, 0.0)
    for uniform in (False, True):
        kernels = Kernels(uniform)
        kernels.onto_plane(x, x, one, box)
        kernels.descend(x, x, state, numbers, one, x, x, box, memory=0.0, growth=0.0)
        kernels.record(x, Incumbent(x, box, L2), crossed, goals, 2)
    torch.cuda.synchronize()


def _launch(d: int) -> dict[str, int]:
    """How a row is processed: a long one by more threads, so that more of it is in flight."""
    if d > 4 * BLOCK:
        return {"block": WIDE_BLOCK, "num_warps": 32}
    return {"block": min(BLOCK, triton.next_power_of_2(d)), "num_warps": 8}


def _bounds_of(box: Box, x: Points) -> list[Tensor]:
    """Bounds as the kernels read them: a number, or one per coordinate."""
    return [bound.expand(1, x.shape[1]).contiguous() if bound.numel() > 1 else bound for bound in (box.lo, box.hi)]


def _flags(box: Box) -> dict[str, Any]:
    """Which bounds have a number per coordinate."""
    return {"many_lo": box.lo.numel() > 1, "many_hi": box.hi.numel() > 1}


@triton.jit
def _onto_plane(
    x, g, r, lo, hi, z, d, converged, most,
    many_lo: tl.constexpr, many_hi: tl.constexpr, uniform: tl.constexpr, block: tl.constexpr,
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
    wanted = tl.where(peak > 0, tl.abs(r) / scale, 0.0)
    time = peak * 0.0  # how far every coordinate has advanced, over its speed
    reach, steps = peak * 0.0, most
    while steps > 0:
        slope, got, room_left = tl.zeros([block], r.dtype), tl.zeros([block], r.dtype), tl.zeros([block], r.dtype)
        for first in range(0, d, block):
            here = first + columns
            weight, room, _, _ = _plane_row(x, g, r, lo, hi, here, d, scale, many_lo, many_hi)
            speed = weight * 0.0 + 1.0 if uniform else weight
            t = tl.minimum(time * speed, room)
            slope += tl.where(t < room, weight * speed, 0.0)
            got += weight * t
            room_left += weight * room
        reach = tl.sum(room_left)
        total = tl.sum(slope)
        missing = tl.where(reach > wanted, tl.where(total > 0, wanted - tl.sum(got), 0.0), 0.0)
        time += missing / tl.where(total > TINY, total, TINY)
        steps = tl.where(missing > converged * wanted, steps - 1, 0)
    for first in range(0, d, block):
        here = first + columns
        weight, room, direction, start = _plane_row(x, g, r, lo, hi, here, d, scale, many_lo, many_hi)
        speed = weight * 0.0 + 1.0 if uniform else weight
        t = tl.where(reach > wanted, tl.maximum(tl.minimum(time * speed, room), 0.0), room)
        low, high = _bounds(lo, hi, here, d, many_lo, many_hi)
        tl.store(z + here, tl.minimum(tl.maximum(start + direction * t, low), high), here < d)


@triton.jit
def _bounds(lo, hi, here, d, many_lo: tl.constexpr, many_hi: tl.constexpr):
    low = tl.load(lo + here, here < d, 0.0) if many_lo else tl.load(lo)
    high = tl.load(hi + here, here < d, 0.0) if many_hi else tl.load(hi)
    return low, high


@triton.jit
def _plane_row(x, g, r, lo, hi, here, d, scale, many_lo: tl.constexpr, many_hi: tl.constexpr):
    """The weight of these coordinates, their room up to the bound that they move towards, direction and start."""
    slope, start = tl.load(g + here, here < d, 0.0), tl.load(x + here, here < d, 0.0)
    low, high = _bounds(lo, hi, here, d, many_lo, many_hi)
    up = (slope < 0) == (r > 0)  # against the sign of r g
    weight = tl.abs(slope) / scale
    room = tl.maximum(tl.where(up, high - start, start - low), 0.0)
    room = tl.where(weight * tl.abs(r) > 0, room, 0.0)
    return weight, room, tl.where(up, 1.0, -1.0), start


@triton.jit
def _descend(
    x, v, ball, x_, v_, ball_, c, g, x0, lo, hi, numbers, stride, d, memory, growth,
    many_lo: tl.constexpr, many_hi: tl.constexpr, uniform: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, v, g, x0, x_, v_ = x + row * d, v + row * d, g + row * d, x0 + row * d, x_ + row * d, v_ + row * d
    ball, ball_, numbers = ball + 3 * row, ball_ + 3 * row, numbers + row * stride
    here, rho, seen, widest = tl.load(c + row), tl.load(ball), tl.load(ball + 1), tl.load(ball + 2)
    eta, gamma, a = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    columns = tl.arange(0, block)
    size, dual = _sizes(x, x0, g, d, uniform, block)
    size, dual = size.to(rho.dtype), dual.to(rho.dtype)
    dual = tl.maximum(dual, TINY)
    rho = tl.where(rho > 0, rho, tl.maximum(here / dual, TINY))
    seen = tl.where(here < 0, 1.0, seen).to(rho.dtype)
    wider = 1 + tl.where(seen > 0, gamma, tl.maximum(gamma, growth))
    rho = tl.where(here < 0, tl.minimum(rho, size) * (1 - gamma), rho * wider)
    rho = tl.minimum(rho, widest).to(eta.dtype)
    tl.store(ball_, rho)
    tl.store(ball_ + 1, seen)
    tl.store(ball_ + 2, widest)
    top = tl.zeros([block], rho.dtype)
    for first in range(0, d, block):
        at = first + columns
        mean = memory * tl.load(v + at, at < d, 0.0) + tl.load(g + at, at < d, 0.0) / dual
        mean = mean.to(rho.dtype)
        tl.store(v_ + at, mean, at < d)
        top = tl.maximum(top, tl.abs(mean))
    peak = tl.maximum(tl.max(top), TINY)
    length = tl.zeros([block], tl.float64)
    if not uniform:
        for first in range(0, d, block):
            at = first + columns
            way = _power(tl.load(v_ + at, at < d, 0.0), peak, a).to(tl.float64)
            length += way * way
    span = tl.sqrt(tl.sum(length)).to(rho.dtype)
    span = tl.where(span > 0, span, 1.0)
    far = tl.zeros([block], tl.float64)
    if not uniform:
        for first in range(0, d, block):
            at = first + columns
            way = _power(tl.load(v_ + at, at < d, 0.0), peak, a) / span
            move = tl.load(x + at, at < d, 0.0) - eta * rho * way - tl.load(x0 + at, at < d, 0.0)
            move = move.to(tl.float64)
            far += move * move
    reach = tl.sqrt(tl.sum(far)).to(rho.dtype)
    for first in range(0, d, block):
        at = first + columns
        centre = tl.load(x0 + at, at < d, 0.0)
        mean = tl.load(v_ + at, at < d, 0.0)
        if uniform:
            way = tl.where(mean > 0, 1.0, tl.where(mean < 0, -1.0, 0.0))
            goal = tl.load(x + at, at < d, 0.0) - eta * rho * way
            goal = tl.minimum(tl.maximum(goal, centre - rho), centre + rho)
        else:
            goal = tl.load(x + at, at < d, 0.0) - eta * rho * _power(mean, peak, a) / span
            goal = tl.where(reach > rho, centre + (goal - centre) * (rho / reach), goal)
        low, high = _bounds(lo, hi, at, d, many_lo, many_hi)
        tl.store(x_ + at, tl.minimum(tl.maximum(goal, low), high), at < d)


@triton.jit
def _sizes(x, x0, g, d, uniform: tl.constexpr, block: tl.constexpr):
    """The norm of x − x₀, and the dual norm of g."""
    columns = tl.arange(0, block)
    apart, steep = tl.zeros([block], tl.float64), tl.zeros([block], tl.float64)
    for first in range(0, d, block):
        at = first + columns
        move = tl.load(x + at, at < d, 0.0) - tl.load(x0 + at, at < d, 0.0)
        slope = tl.load(g + at, at < d, 0.0)
        if uniform:
            apart, steep = tl.maximum(apart, tl.abs(move)), steep + tl.abs(slope)
        else:
            move, slope = move.to(tl.float64), slope.to(tl.float64)
            apart, steep = apart + move * move, steep + slope * slope
    size = tl.max(apart) if uniform else tl.sqrt(tl.sum(apart))
    dual = tl.sum(steep) if uniform else tl.sqrt(tl.sum(steep))
    return size, dual


@triton.jit
def _power(mean, peak, a):
    """sign(u) |u|^a, u = mean / peak."""
    u = tl.abs(mean) / peak
    size = tl.where(u > 0, tl.exp(a * tl.log(tl.where(u > 0, u, 1.0))), 0.0)
    return tl.where(mean < 0, -size, size)


@triton.jit
def _margin(logits, goals, value, crossed, slopes, classes, relative, absolute, largest, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits, slopes = logits + row * classes, slopes + row * classes
    label, sign = tl.load(goals + 2 * row), tl.load(goals + 2 * row + 1)
    own = tl.load(logits + label)
    columns = tl.arange(0, block)
    highest, peaks = tl.full([block], float("-inf"), own.dtype), tl.zeros([block], own.dtype)
    nans = tl.zeros([block], own.dtype)
    for first in range(0, classes, block):
        at = first + columns
        here = tl.load(logits + at, at < classes, float("-inf"))
        nans += tl.where(here != here, 1.0, 0.0)
        highest = tl.maximum(highest, tl.where(at == label, float("-inf"), here))
        peaks = tl.maximum(peaks, tl.where(at < classes, tl.abs(here), 0.0))
    other = tl.max(highest)
    valid = tl.sum(nans) == 0
    size = tl.minimum(tl.max(peaks), 100 * (tl.abs(own) + tl.abs(other)))
    tolerance = tl.maximum(relative * size, absolute)
    c = sign * (own - other) + tolerance
    number = c == c
    tl.store(value + row, tl.where(valid, tl.where(number, tl.minimum(tl.maximum(c, -largest), largest), 0.0), 0.0))
    tl.store(crossed + row, tl.where(valid, c < 0, False))
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
        tl.store(slopes + at, tl.where(valid, sign * slope, 0.0), at < classes)


@triton.jit
def _record(
    x, x0, lo, hi, crossed, best, distance, spent, nearest, seen, grid, goals, passes, d, points,
    many_lo: tl.constexpr, many_hi: tl.constexpr, uniform: tl.constexpr, block: tl.constexpr, slots_block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, x0, best = x + row * d, x0 + row * d, best + row * d
    before = tl.load(distance + row)
    columns = tl.arange(0, block)
    far, outside = tl.zeros([block], tl.float64), tl.zeros([block], tl.int32)
    for first in range(0, d, block):
        at = first + columns
        here = tl.load(x + at, at < d, 0.0)
        low, high = _bounds(lo, hi, at, d, many_lo, many_hi)
        inside = tl.where(here >= low, tl.where(here <= high, 0, 1), 1)
        outside += tl.where(at < d, inside, 0)
        move = (here - tl.load(x0 + at, at < d, 0.0)).to(tl.float64)
        if uniform:
            far = tl.maximum(far, tl.abs(move))
        else:
            far += move * move
    size = tl.max(far) if uniform else tl.sqrt(tl.sum(far))
    size = size.to(before.dtype)
    found = tl.where(tl.sum(outside) == 0, tl.load(crossed + row).to(tl.int32), 0)
    size = tl.where(found > 0, size, float("inf"))
    if size < before:
        tl.store(distance + row, size)
        for first in range(0, d, block):
            at = first + columns
            tl.store(best + at, tl.load(x + at, at < d, 0.0), at < d)
    total = tl.load(spent + row) + passes * tl.abs(tl.load(goals + 2 * row + 1))
    ever = tl.minimum(tl.load(nearest + row), size)
    tl.store(spent + row, total)
    tl.store(nearest + row, ever)
    numbers = tl.arange(0, slots_block)
    marks = tl.load(grid + numbers, numbers < points, float("inf"))
    slot = tl.sum(tl.where(marks < total.to(tl.float64), 1, 0))
    tl.store(seen + row * points + tl.minimum(slot, points - 1), ever)
