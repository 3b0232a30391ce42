r"""Input regions: the ball of a norm intersected with the box, and the minimum of linear functions over it.

For a linear function a the minimum of :math:`a^\top \delta` over :math:`\|\delta\| \le r` and
:math:`-down \le \delta \le up` is found through its dual, so that any multiplier λ ≥ 0 gives a bound that holds. With
room = down where a > 0 and up where a < 0:

=====  ======================================================  =======================================
norm   dual value                                              best λ
=====  ======================================================  =======================================
linf   −Σ |a| room (the ball is part of the box)               none
l1     −Σ max(|a| − λ, 0) room − λ r                           |a| where the room of all larger is r
l2     −Σ (|a| t − λ t² / 2) − λ r² / 2, t = min(|a|/λ, room)  Newton's method for ‖t‖ = r
=====  ======================================================  =======================================
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from marginattack.bounds.operations import rounding
from marginattack.core.norms import Norm
from marginattack.errors import InputError

CUT_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # multipliers of a cut that are tried
CONVEX = ("l1", "l2", "linf")  # norms with convex balls
NEWTON_STEPS = 12  # the set of coordinates at their bound grows from step to step, and is complete after a few


@dataclass(frozen=True, eq=False)
class Region:
    """All inputs within ``radius`` of ``centre`` in a norm and inside the box; one row per sample."""

    centre: Tensor  # (n, *shape)
    down: Tensor  # (n, *shape): how far each coordinate can fall, at most
    up: Tensor
    radius: Tensor  # (n,)
    norm: str
    cut: tuple[Tensor, Tensor] | None = None  # g (n, d) and k (n,): only points with gᵀx + k ≤ 0 matter

    @property
    def magnitude(self) -> Tensor:
        """The largest |x| of each coordinate."""
        return torch.maximum((self.centre - self.down).abs(), (self.centre + self.up).abs())

    def repeat(self, n: int, cut: tuple[Tensor, Tensor] | None = None) -> "Region":
        """The region of one sample n times, each with its own cut."""
        centre, down, up, radius = (
            each.expand(n, *each.shape[1:]) for each in (self.centre, self.down, self.up, self.radius)
        )
        return Region(centre, down, up, radius, self.norm, cut)

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "Region":
        """The region in another precision, rounded outwards, and on another device."""
        grow = 1 + 2 * torch.finfo(dtype).eps
        down, up, radius = (each.to(device, dtype) * grow for each in (self.down, self.up, self.radius))
        return Region(self.centre.to(device, dtype), down, up, radius, self.norm)


def make_region(norm: Norm, images: Tensor, lo: Tensor, hi: Tensor, radius: Tensor) -> Region:
    """The region around float64 images; every coordinate of these balls changes by at most the radius.

    Raises:
        InputError: Balls of this norm are not convex.
    """
    if norm.name not in CONVEX:
        raise InputError(f"bounds need a convex ball, not {norm}: choose one of {', '.join(CONVEX)}")
    r = radius.view(-1, *[1] * (images.ndim - 1))
    return Region(images, torch.minimum(r, images - lo), torch.minimum(r, hi - images), radius, norm.name)


def least(region: Region, a: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The minimum of aᵀδ over the region, (n, rows), for coefficients (n, rows, d) and the room of each coordinate."""
    if region.norm == "linf":  # the ball is part of the box
        return (a.clamp(max=0) @ up.mT - a.clamp(min=0) @ down.mT)[..., 0]
    return MINIMA[region.norm](a.abs(), torch.where(a > 0, down, up), region.radius[:, None])


def least_value(
    region: Region, a: Tensor, constant: Tensor, centre: Tensor, down: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    """The minimum of aᵀx + constant over the region, (n, rows), before rounding, and the rounding in it.

    A cut enters with a multiplier μ ≥ 0: no point of it has a value below min aᵀx + constant + μ (gᵀx + k). The best
    of a few multipliers is taken, around the one for which both functions vary equally.
    """
    size = centre.abs() + torch.maximum(down, up)

    def value_and_error(a: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
        value = constant + (a @ centre.mT)[..., 0] + least(region, a, down, up)
        return value, rounding(2 * a.shape[2] + 64, a.dtype) * ((a.abs() @ size.mT)[..., 0] + constant.abs())

    if region.cut is None:
        return value_and_error(a, constant)
    g, k = region.cut[0][:, None], region.cut[1][:, None, None]
    with torch.no_grad():
        m = _multiplier(region, a, g, k, centre, down, up)
    value, error = value_and_error(a + m * g, constant + (m * k)[..., 0])
    sizes = (a.abs() @ size.mT + m * (g.abs() @ size.mT + k.abs()))[..., 0] + constant.abs()
    return value, error + rounding(4, a.dtype) * sizes


def _multiplier(region: Region, a: Tensor, g: Tensor, k: Tensor, centre: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The multiplier of the cut, (n, rows, 1), that gives the largest of the values tried; 0 if none helps."""
    spread = torch.maximum(down, up)
    ratio = (a.abs() @ spread.mT) / (g.abs() @ spread.mT).clamp(min=torch.finfo(a.dtype).tiny)
    gain = g @ centre.mT + k
    base, more, width = a @ up.mT, g @ up.mT, (down + up).mT
    best = (
        (a.clamp(max=0) @ up.mT - a.clamp(min=0) @ down.mT)
        if region.norm == "linf"
        else least(region, a, down, up)[..., None]
    )
    chosen = torch.zeros_like(ratio)
    for factor in CUT_FACTORS:
        m = factor * ratio
        if region.norm == "linf":  # the sum over the negative part is that of all minus that of the positive part
            value = base + m * more - torch.addcmul(a, m, g).relu_() @ width
        else:
            value = least(region, a + m * g, down, up)[..., None]
        value = value + m * gain
        chosen = torch.where(value > best, m, chosen)
        best = torch.maximum(value, best)
    return chosen


def _l1(size: Tensor, room: Tensor, radius: Tensor) -> Tensor:
    falling, order = size.sort(dim=-1, descending=True)
    with torch.no_grad():
        filled = room.expand_as(size).gather(-1, order).cumsum(-1)
        last = (filled < radius[..., None]).sum(-1, keepdim=True)
        within = last < size.shape[-1]
    # With a gradient, which is the step of the coordinate that uses only part of its room.
    multiplier = torch.where(within, falling.gather(-1, last.clamp(max=size.shape[-1] - 1)), 0)
    return -((size - multiplier).clamp(min=0) * room).sum(-1) - multiplier[..., 0] * radius


def _l2(size: Tensor, room: Tensor, radius: Tensor) -> Tensor:
    with torch.no_grad():
        steep = torch.linalg.vector_norm(size, dim=-1)
        time = torch.where(steep > 0, radius / steep, 0)  # 1 / λ
        for _ in range(NEWTON_STEPS):
            full = time[..., None] * size >= room
            left = radius.square() - torch.where(full, room, 0).square().sum(-1)
            free = torch.where(full, 0, size).square().sum(-1)
            longer = torch.where((free > 0) & (left > 0), (left / free).sqrt(), time)
            if not bool((longer > time * (1 + 1e-6)).any()):
                break
            time = torch.maximum(time, longer)
        reach = torch.where(size > 0, room, 0).square().sum(-1)
        bounded = (reach > radius.square()) & (time > 0)  # else the box alone binds
        multiplier = torch.where(bounded, 1 / time, 0)[..., None]
    t = torch.where(multiplier > 0, torch.minimum(size / torch.where(multiplier > 0, multiplier, 1), room), room)
    least = -(size * t - multiplier * t.square() / 2).sum(-1)
    return least - multiplier[..., 0] * radius.square() / 2


MINIMA: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"l1": _l1, "l2": _l2}
