r"""Norms as values: how large a perturbation is, and the two nearest points that every attack asks for.

``onto_plane`` solves the restoration move inside the box, exactly (paper Eqs. 3 and 13):

.. math:: \min_z \|z - x\|_p \quad \text{s.t.} \quad g^\top (z - x) = -r, \; lo \le z \le hi.

Each coordinate moves against the sign of :math:`r g_i` by :math:`t_i \in [0, h_i]`, :math:`h_i` the room to the wall
that it heads for, with :math:`\sum_i |g_i| t_i = |r|`. What differs between norms is how :math:`t` is spread:

=====  ==========================  =========================================
norm   optimal t                   found by
=====  ==========================  =========================================
l2     min(λ |g|, h)               Newton's steps for λ
linf   min(λ, h)                   Newton's steps for λ
l1     h, filled by falling |g|    sorting |g|, the last one in part
l0     h, filled by falling |g|h   sorting |g|h, the last one in part
=====  ==========================  =========================================

Σ |g| t is concave and piecewise linear in λ: Newton's steps from 0 never pass the answer and reach it exactly, mostly
after three to six, each in O(d), for a batch at once (Cominetti et al. 2014). Where the plane misses the box the answer
is the corner nearest to it. The paper's active-set loop ends at the same point.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from marginattack.core.types import Box, Points, Scalars

NEWTON, MOST = 10, 100  # steps of Newton's method: on a GPU, and elsewhere at most
TINY = 1e-30


class Norm(ABC):
    """A norm: sizes, the dual norm and its direction, and nearest points."""

    name: str
    level: ClassVar[bool | None] = None  # of those that have kernels: whether every coordinate advances alike
    shrinks: ClassVar[bool] = False  # whether it is better to shrink a perturbation than to slide along a plane

    @abstractmethod
    def size(self, v: Points) -> Scalars:
        """‖v‖"""

    @abstractmethod
    def dual(self, g: Points) -> Scalars:
        """Max gᵀs over ‖s‖ ≤ 1"""

    @abstractmethod
    def steepest(self, g: Points) -> Points:
        """The s with ‖s‖ ≤ 1 at which gᵀs = dual(g) (paper Eq. 5); zero where g is zero."""

    @abstractmethod
    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        """The point of the ball nearest to x (in the Euclidean sense); x itself where it lies inside.

        Every coordinate moves towards the centre, so a box that holds x and the centre holds the answer.
        """

    @abstractmethod
    def _spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        """The smallest t in [0, room] with Σ weight·t = r; all of the room where that cannot reach r."""

    @property
    def pace(self) -> "Norm":
        """The norm for steps in a ball of this one: itself, unless its steepest direction is a single coordinate."""
        return self

    @property
    def scout(self) -> "Norm | None":
        """The norm in which a first point is sought for this one: ℓ∞, whose steps move every coordinate."""
        return LINF

    def onto_plane(self, x: Points, g: Points, r: Scalars, lo: Box, hi: Box) -> Points:
        """The nearest point to x in the box with gᵀ(z − x) = −r; the corner if there is none; x where g = 0."""
        if (kernels := self.kernels(x)) is not None:
            z: Points = kernels.onto_plane(x, g, r, lo, hi)
            return z
        weight, peak = _normalised(g)
        heading = -torch.sign(r) * torch.sign(g)
        room = torch.where(heading > 0, hi - x, x - lo).clamp(min=0)
        room = torch.where(weight * heading.abs() > 0, room, 0)
        t = self._spread(weight, room, torch.where(peak > 0, r.abs() / peak, 0))
        return torch.clamp(x + heading * t, lo, hi)

    def kernels(self, x: Points) -> Any:
        """Kernels of our own for these points, if there are any: for ℓ2 and ℓ∞, on a GPU where Triton works."""
        if self.level is None or (module := fused(x)) is None:
            return None
        return module.Kernels(self.level)

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True)
class _L2(Norm):
    name: str = "l2"
    level: ClassVar = False

    def size(self, v: Points) -> Scalars:
        # In double precision sums of squares neither overflow nor vanish.
        size: Scalars = torch.linalg.vector_norm(v, dim=1, keepdim=True, dtype=torch.float64)
        return size.to(v.dtype)

    def dual(self, g: Points) -> Scalars:
        return self.size(g)

    def steepest(self, g: Points) -> Points:
        size = self.size(g)
        return torch.where(size > 0, g / size, 0)

    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        size = self.size(x - centre)
        return torch.where(size > radius, centre + (x - centre) * (radius / size), x)

    def _spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return _level(weight, weight, room, r)


@final
@dataclass(frozen=True)
class _Linf(Norm):
    name: str = "linf"
    level: ClassVar = True
    shrinks: ClassVar = True

    @property
    def scout(self) -> None:
        return None

    def size(self, v: Points) -> Scalars:
        return v.abs().amax(1, keepdim=True)

    def dual(self, g: Points) -> Scalars:
        return g.abs().sum(1, keepdim=True)

    def steepest(self, g: Points) -> Points:
        return torch.sign(g)

    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        return torch.clamp(x, centre - radius, centre + radius)

    def _spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return _level(weight, torch.ones_like(weight), room, r)


@final
@dataclass(frozen=True)
class _L1(Norm):
    name: str = "l1"

    @property
    def pace(self) -> Norm:
        return L2

    def size(self, v: Points) -> Scalars:
        return v.abs().sum(1, keepdim=True)

    def dual(self, g: Points) -> Scalars:
        return g.abs().amax(1, keepdim=True)

    def steepest(self, g: Points) -> Points:
        return _largest(g) * torch.sign(g)

    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        # Soft thresholding by the θ at which Σ max(|v| − θ, 0) = radius, by Newton's steps (Michelot 1986).
        v = x - centre
        size = v.abs()
        threshold = torch.zeros_like(radius)
        for _ in _newton(x):
            over = (size - threshold).clamp(min=0).sum(1, keepdim=True) - radius
            if _settled(over, radius):
                break
            threshold = threshold + over.clamp(min=0) / (size > threshold).sum(1, keepdim=True).clamp(min=1)
        shrunk = centre + torch.sign(v) * (size - threshold).clamp(min=0)
        return torch.where(self.size(v) > radius, shrunk, x)

    def _spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return _filled(weight, weight, room, r)


@final
@dataclass(frozen=True)
class _L0(Norm):
    """The number of changed coordinates. No norm in the strict sense; "dual" is the gain of the best coordinate."""

    name: str = "l0"

    @property
    def pace(self) -> Norm:
        return L2

    def size(self, v: Points) -> Scalars:
        return (v != 0).sum(1, keepdim=True).to(v.dtype)

    def dual(self, g: Points) -> Scalars:
        return g.abs().amax(1, keepdim=True)

    def steepest(self, g: Points) -> Points:
        return _largest(g) * torch.sign(g)

    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        order = (x - centre).abs().argsort(1, descending=True)
        kept = torch.arange(x.shape[1], device=x.device) < radius
        return torch.where(torch.zeros_like(kept).scatter(1, order, kept), x, centre)

    def _spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return _filled(weight * room, weight, room, r)


L0, L1, L2, LINF = _L0(), _L1(), _L2(), _Linf()
NORMS: dict[str, Norm] = {norm.name: norm for norm in (L0, L1, L2, LINF)}


def fused(x: Tensor) -> Any:
    """The module of our kernels, for a tensor on a GPU where they work; else None."""
    return _fused() if x.is_cuda else None


@cache
def _fused() -> Any:
    """The module of our kernels; None where Triton is missing or cannot compile them, for want of a compiler say."""
    try:
        from marginattack.execution import kernels

        kernels.tried()
    except Exception:
        return None
    return kernels


def as_norm(norm: Norm | str) -> Norm:
    """A norm by its name, or the norm itself."""
    if isinstance(norm, Norm):
        return norm
    if norm not in NORMS:
        raise ValueError(f"no norm named {norm!r}: choose one of {', '.join(NORMS)}")
    return NORMS[norm]


def _normalised(v: Points) -> tuple[Points, Scalars]:
    """|v| over its largest entry, and that entry: sums of squares then neither overflow nor vanish."""
    peak = v.abs().amax(1, keepdim=True)
    return torch.where(peak > 0, v.abs() / peak, 0), peak


def _largest(g: Points) -> Points:
    """One at the largest entry of each non-zero row, zero elsewhere."""
    return torch.zeros_like(g).scatter(1, g.abs().argmax(1, keepdim=True), 1)


def _before(values: Tensor) -> Tensor:
    """Sums of all values to the left of each."""
    return torch.cat([torch.zeros_like(values[:, :1]), values.cumsum(1)[:, :-1]], dim=1)


def _newton(x: Points) -> range:
    """The steps that Newton's method may take: on a GPU few, since asking whether it has arrived would hold it up."""
    return range(NEWTON if x.is_cuda else MOST)


def _settled(missing: Scalars, of: Scalars) -> bool:
    """Whether nothing is missing but rounding; on a GPU it is not asked."""
    return not missing.is_cuda and bool((missing <= 4 * torch.finfo(of.dtype).eps * of).all())


def _level(weight: Points, pace: Points, room: Points, r: Scalars) -> Points:
    """T = min(λ·pace, room) with Σ weight·t = r: every coordinate advances at its pace until it meets its wall."""
    level, t = torch.zeros_like(r), torch.zeros_like(room)
    slopes = weight * pace
    reachable = (weight * room).sum(1, keepdim=True) > r
    for _ in _newton(room):
        slope = torch.where(t < room, slopes, 0).sum(1, keepdim=True)
        missing = torch.where(reachable & (slope > 0), r - (weight * t).sum(1, keepdim=True), 0)
        if _settled(missing, r):
            break
        level = level + missing / slope.clamp(min=TINY)
        t = torch.minimum(level * pace, room)
    return torch.where(reachable, t.clamp(min=0), room)


def _filled(key: Points, weight: Points, room: Points, r: Scalars) -> Points:
    """Coordinates filled to their walls by falling key until Σ weight·t = r, the last one in part."""
    order = key.argsort(1, descending=True)
    weight, room = weight.gather(1, order), room.gather(1, order)
    left = r - _before(weight * room)
    t = torch.where(weight > 0, left / weight, 0).clamp(min=0)
    return torch.zeros_like(t).scatter(1, order, torch.minimum(t, room))
