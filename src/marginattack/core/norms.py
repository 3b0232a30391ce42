r"""Norms as values: the size of a perturbation, and its projections onto planes and balls.

``onto_plane`` solves the restoration move inside the box, exactly (paper Eqs. 3 and 13):

.. math:: \min_z \|z - x\|_p \quad \text{s.t.} \quad g^\top (z - x) = -r, \; lo \le z \le hi.

Each coordinate moves against the sign of :math:`r g_i` by :math:`t_i \in [0, h_i]`, :math:`h_i` the room up to the
bound that it moves towards, with :math:`\sum_i |g_i| t_i = |r|`. Norms differ in how :math:`t` is spread:

=====  ==========================  =========================================
norm   optimal t                   found by
=====  ==========================  =========================================
l2     min(λ |g|, h)               Newton's method for λ
linf   min(λ, h)                   Newton's method for λ
l1     h, filled by falling |g|    sorting |g|, the last in part
l0     h, filled by falling |g|h   sorting |g|h, the last in part
=====  ==========================  =========================================

Σ |g| t is concave and piecewise linear in λ: Newton's method from 0 never overshoots and reaches the solution exactly,
mostly after three to six steps of O(d), for a batch at once (Cominetti et al. 2014). If the plane misses the box, the
solution is the corner nearest to it. The paper's active-set loop ends at the same point.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat, TypeAlias, final

import torch
from torch import Tensor

from marginattack.core.box import Box
from marginattack.core.fusion import fusible
from marginattack.core.plugins import Registry
from marginattack.core.types import Points, Scalars
from marginattack.errors import InputError, choose

NEWTON_STEPS, NEWTON_STEPS_ON_GPU = 100, 10  # at most; on a GPU always, since a convergence test would synchronise
TINY = 1e-30


class Norm(ABC):
    """A norm: the size of perturbations, the dual norm with its direction, and projections.

    The bundled norms are the values ``L0``, ``L1``, ``L2`` and ``LINF``. docs/add-a-norm.md shows another one.

    Example:
        >>> import torch
        >>> from marginattack import L2, LINF
        >>> v = torch.tensor([[3.0, -4.0]])
        >>> L2.size(v).item(), LINF.size(v).item()
        (5.0, 4.0)
    """

    name: str
    shrinks: ClassVar[bool] = False  # whether shrinking a perturbation works better than sliding along a plane
    counts: ClassVar[bool] = False  # whether the size is a number of coordinates
    tolerates_rounding: ClassVar[bool] = False  # whether searches in 16 bits were shown to keep its margins

    @abstractmethod
    def size(self, v: Points) -> Scalars:
        """‖v‖"""

    @abstractmethod
    def dual(self, g: Points) -> Scalars:
        """The dual norm: max gᵀs over ‖s‖ ≤ 1"""

    @abstractmethod
    def steepest(self, g: Points) -> Points:
        """The s with ‖s‖ ≤ 1 and gᵀs = dual(g) (paper Eq. 5); zero if g is zero."""

    @abstractmethod
    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        """The Euclidean projection of x onto the ball, or another point of it.

        Every coordinate moves towards the centre, so a box that contains x and the centre contains the point.
        """

    @abstractmethod
    def spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        """The smallest t in [0, room] with Σ weight·t = r; t = room if r is out of reach."""

    @property
    def step_norm(self) -> "Norm":
        """The norm for steps inside a ball of this one; another one if the steepest direction is one coordinate."""
        return self

    @property
    def scout_norm(self) -> "Norm | None":
        """The norm of a first search for this one: ℓ∞, whose steps move every coordinate. None: no such search."""
        return LINF

    def onto_plane(self, x: Points, g: Points, r: Scalars, box: Box) -> Points:
        """The nearest point to x in the box with gᵀ(z − x) = −r; the corner if there is none; x if g = 0."""
        z: Points = onto_plane(self, x, g, r, box)
        return z

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True)
class _L2(Norm):
    name: str = "l2"
    tolerates_rounding: ClassVar = True

    def size(self, v: Points) -> Scalars:
        # In double precision sums of squares neither overflow nor underflow.
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

    def spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return advance(weight, weight, room, r)


@final
@dataclass(frozen=True)
class _Linf(Norm):
    name: str = "linf"
    shrinks: ClassVar = True
    tolerates_rounding: ClassVar = True

    @property
    def scout_norm(self) -> None:
        return None

    def size(self, v: Points) -> Scalars:
        return v.abs().amax(1, keepdim=True)

    def dual(self, g: Points) -> Scalars:
        return g.abs().sum(1, keepdim=True)

    def steepest(self, g: Points) -> Points:
        return torch.sign(g)

    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        return torch.clamp(x, centre - radius, centre + radius)

    def spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return advance(weight, torch.ones_like(weight), room, r)


@final
@dataclass(frozen=True)
class _L1(Norm):
    name: str = "l1"

    @property
    def step_norm(self) -> Norm:
        return L2

    def size(self, v: Points) -> Scalars:
        return v.abs().sum(1, keepdim=True)

    def dual(self, g: Points) -> Scalars:
        return g.abs().amax(1, keepdim=True)

    def steepest(self, g: Points) -> Points:
        return _largest(g) * torch.sign(g)

    def onto_ball(self, x: Points, centre: Points, radius: Scalars) -> Points:
        # Soft thresholding by the θ at which Σ max(|v| − θ, 0) = radius, by Newton's method (Michelot 1986).
        v = x - centre
        size = v.abs()
        threshold = torch.zeros_like(radius)
        for _ in range(_newton_steps(x)):
            over = (size - threshold).clamp(min=0).sum(1, keepdim=True) - radius
            if _converged(over, radius):
                break
            threshold = threshold + over.clamp(min=0) / (size > threshold).sum(1, keepdim=True).clamp(min=1)
        shrunk = centre + torch.sign(v) * (size - threshold).clamp(min=0)
        return torch.where(self.size(v) > radius, shrunk, x)

    def spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return fill(weight, weight, room, r)


@final
@dataclass(frozen=True)
class _L0(Norm):
    """The number of changed coordinates, not a norm in the strict sense; "dual" is the gain of the best coordinate."""

    name: str = "l0"
    counts: ClassVar = True

    @property
    def step_norm(self) -> Norm:
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

    def spread(self, weight: Points, room: Points, r: Scalars) -> Points:
        return fill(weight * room, weight, room, r)


L0, L1, L2, LINF = _L0(), _L1(), _L2(), _Linf()
NormLike: TypeAlias = Norm | str | SupportsFloat  # a norm, its name, or its p
BUNDLED = {norm.name: norm for norm in (L0, L1, L2, LINF)}
NORMS: Mapping[str, Norm] = Registry("marginattack.norms", BUNDLED, lambda _, norm: norm.name)


def is_bundled(norm: Norm) -> bool:
    """Whether a norm is one of this package."""
    return norm.name in BUNDLED


def as_norm(norm: NormLike) -> Norm:
    """A norm by its name or its p ("l2", "L2", "2", 2; "linf", "Linf", "inf", infinity), or the norm itself."""
    if isinstance(norm, Norm):
        return norm
    try:
        name = norm if isinstance(norm, str) else f"{float(norm):g}"
    except (TypeError, ValueError):
        raise InputError(f"norm is {norm!r}: give one of {', '.join(NORMS)}") from None
    p = name.strip().lower().replace("∞", "inf").removeprefix("l").strip("_-")
    for known in (name, f"l{p}"):
        if known in NORMS:
            return NORMS[known]
    raise InputError(f"no norm named {norm!r}: {choose(name, NORMS)}")


def as_norms(norms: NormLike | list[Any] | tuple[Any, ...]) -> list[Norm]:
    """One norm or several, each as ``as_norm`` takes it."""
    return [as_norm(each) for each in (norms if isinstance(norms, list | tuple) else [norms])]


@fusible
def onto_plane(norm: Norm, x: Points, g: Points, r: Scalars, box: Box) -> Points:
    """``Norm.onto_plane``"""
    weight, peak = _normalise(g)
    direction = -torch.sign(r) * torch.sign(g)
    room = torch.where(direction > 0, box.hi - x, x - box.lo).clamp(min=0)
    room = torch.where(weight * direction.abs() > 0, room, 0)
    t = norm.spread(weight, room, torch.where(peak > 0, r.abs() / peak, 0))
    return box.clamp(x + direction * t)


def _normalise(v: Points) -> tuple[Points, Scalars]:
    """|v| over its largest entry, and that entry: sums of squares then neither overflow nor underflow."""
    peak = v.abs().amax(1, keepdim=True)
    return torch.where(peak > 0, v.abs() / peak, 0), peak


def _largest(g: Points) -> Points:
    """One at the largest entry of each non-zero row, zero elsewhere."""
    return torch.zeros_like(g).scatter(1, g.abs().argmax(1, keepdim=True), 1)


def _before(values: Tensor) -> Tensor:
    """The sum of all values to the left of each."""
    return torch.cat([torch.zeros_like(values[:, :1]), values.cumsum(1)[:, :-1]], dim=1)


def _newton_steps(x: Points) -> int:
    """The maximum number of steps of Newton's method for these points."""
    return NEWTON_STEPS_ON_GPU if x.is_cuda else NEWTON_STEPS


def _converged(missing: Scalars, of: Scalars) -> bool:
    """Whether only rounding is missing; never tested on a GPU."""
    return not missing.is_cuda and bool((missing <= 4 * torch.finfo(of.dtype).eps * of).all())


def advance(weight: Points, speed: Points, room: Points, r: Scalars) -> Points:
    """Solve Σ weight·t = r for t = min(λ·speed, room): every coordinate advances at its speed up to its bound."""
    time, t = torch.zeros_like(r), torch.zeros_like(room)
    slopes = weight * speed
    reachable = (weight * room).sum(1, keepdim=True) > r
    for _ in range(_newton_steps(room)):
        slope = torch.where(t < room, slopes, 0).sum(1, keepdim=True)
        missing = torch.where(reachable & (slope > 0), r - (weight * t).sum(1, keepdim=True), 0)
        if _converged(missing, r):
            break
        time = time + missing / slope.clamp(min=TINY)
        t = torch.minimum(time * speed, room)
    return torch.where(reachable, t.clamp(min=0), room)


def fill(key: Points, weight: Points, room: Points, r: Scalars) -> Points:
    """Fill coordinates up to their bounds by falling key until Σ weight·t = r, the last one in part."""
    order = key.argsort(1, descending=True)
    weight, room = weight.gather(1, order), room.gather(1, order)
    left = r - _before(weight * room)
    t = torch.where(weight > 0, left / weight, 0).clamp(min=0)
    return torch.zeros_like(t).scatter(1, order, torch.minimum(t, room))
