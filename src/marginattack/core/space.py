"""Space: the inputs that an attack may choose from, and the distance between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import torch
from torch import Tensor

from marginattack.core.box import Box
from marginattack.core.norms import Norm
from marginattack.core.types import Mask, Points
from marginattack.errors import InputError

Bounds: TypeAlias = Sequence[Any]  # (lo, hi): numbers, or arrays that broadcast to an input
MASK = "give a boolean mask that broadcasts to an input, True for fixed features"


@dataclass(frozen=True, eq=False)
class Space:
    """Inputs between ``lo`` and ``hi``, with the ``fixed`` features of the image; distances are in units of ``scale``.

    All fields broadcast to an input. Attacks see flat points, which are inputs over ``scale``.
    """

    lo: Tensor
    hi: Tensor
    scale: Tensor | None = None
    fixed: Tensor | None = None

    def bounds_for(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds that broadcast against these images; both are the image itself for fixed features.

        Raises:
            InputError: They do not fit the shape of the images.
        """
        lo, hi = (_fit(bound, images, "bounds").to(images) for bound in (self.lo, self.hi))
        if self.fixed is None:
            return lo, hi
        fixed = _fit(self.fixed, images, "fixed").to(images.device)
        return torch.where(fixed, images, lo), torch.where(fixed, images, hi)

    def scale_for(self, images: Tensor) -> Tensor:
        """The scale, in the shape of one of these images."""
        scale = torch.ones(()) if self.scale is None else self.scale
        return _fit(scale, images, "scale").expand(images.shape[1:]).to(images)

    def contains(self, images: Tensor, points: Tensor) -> Mask:
        """Whether each point is inside the bounds and has the fixed features of its image."""
        lo, hi = self.bounds_for(images)
        return ((points >= lo) & (points <= hi)).flatten(1).all(1)

    def distance(self, norm: Norm, images: Tensor, points: Tensor) -> Tensor:
        """The distance of each point from its image, in float64."""
        change = points.double() - images.double()
        if self.scale is not None:
            change = change / self.scale_for(change)
        return norm.size(change.flatten(1))[:, 0]

    def check_distance(self, norm: Norm, images: Tensor, eps: float | int) -> None:
        """Raise InputError for a distance that no input exceeds, such as 8 for pixels in [0, 1]."""
        x0, box = self.flatten(images[:1])
        width = (box.hi - box.lo).expand_as(x0).double()
        most = float(norm.size(width))
        if eps >= most:
            pixels = not norm.counts and float(width.max()) == 1 <= eps <= 255
            hint = f"did you mean {eps:g}/255?" if pixels else "give a smaller one"
            known = f"the distance {eps:g} is given, but no input is farther away than {most:.4g} in {norm}"
            raise InputError(f"{known}: {hint}")

    def flatten(self, images: Tensor) -> tuple[Points, Box]:
        """These images as flat points, and their box; over the scale."""
        x0, bounds = images.flatten(1), self.bounds_for(images)
        lo, hi = (bound.flatten(1) if bound.ndim == images.ndim else bound.reshape(1, -1) for bound in bounds)
        if self.scale is not None:
            scale = self.scale_for(images).flatten()
            x0, lo, hi = x0 / scale, lo / scale, hi / scale
        return x0, Box(lo, hi)

    def restore(self, images: Tensor, x0: Points, points: Points) -> Tensor:
        """Flat points as inputs, on the CPU like these images; features equal to those of x₀ are the image's."""
        inputs: Tensor = points.unflatten(1, images.shape[1:]).cpu()
        if self.scale is None:
            return inputs
        inputs = torch.clamp(inputs * self.scale_for(images), *self.bounds_for(images))
        return torch.where((points == x0).cpu().view_as(images), images, inputs)

    def require_plain(self, who: str) -> None:
        """Raise InputError if there is a scale or fixed features, for functions that do not support them."""
        if self.scale is not None or self.fixed is not None:
            given = "fixed" if self.scale is None else "scale"
            raise InputError(f"{who} does not support {given}: measure without it, or leave {who} out")

    def describe(self) -> dict[str, Any]:
        """The space in a few numbers, for the settings of a result."""
        about: dict[str, Any] = {"bounds": [float(self.lo.min()), float(self.hi.max())]}
        if bool((self.lo != self.lo.min()).any() or (self.hi != self.hi.max()).any()):  # they differ between features
            about["box"] = _digest(torch.stack(torch.broadcast_tensors(self.lo, self.hi)))
        if self.scale is not None:
            about["scale"] = [float(self.scale.min()), float(self.scale.max())]
        return about if self.fixed is None else {**about, "fixed": True}


def as_space(bounds: Bounds | None, scale: Any, fixed: Any) -> Space:
    """Validate the arguments of a user and make a space; by default the bounds are 0 and 1.

    Raises:
        InputError: An argument is invalid.
    """
    return Space(*_check_bounds((0.0, 1.0) if bounds is None else bounds), _check_scale(scale), _check_fixed(fixed))


def _check_bounds(bounds: Bounds) -> tuple[Tensor, Tensor]:
    try:
        lo, hi = (torch.as_tensor(bound, dtype=torch.float64) for bound in bounds)
    except (TypeError, ValueError):
        raise InputError(f"bounds are {bounds!r}: give (lo, hi)") from None
    try:
        low, high = torch.broadcast_tensors(lo, hi)
    except RuntimeError:
        shapes = f"{tuple(lo.shape)} and {tuple(hi.shape)}"
        raise InputError(f"bounds have shapes {shapes}: both must fit the input") from None
    equal = (low == high) & torch.isfinite(low)
    wrong = ~((low < high) | equal) | equal.all()
    if bool(wrong.any()):
        span = f"[{float(low[wrong][0]):g}, {float(high[wrong][0]):g}]"
        raise InputError(f"bounds are {span}: the lower bound must be below the upper, or equal to fix a feature")
    return lo, hi


def _check_scale(scale: Any) -> Tensor | None:
    if scale is None:
        return None
    try:
        values = torch.as_tensor(scale, dtype=torch.float64)
    except (TypeError, ValueError):
        raise InputError(f"scale is {scale!r}: give positive numbers that broadcast to an input") from None
    wrong = ~(torch.isfinite(values) & (values > 0))
    if bool(wrong.any()):
        hint = "give positive numbers, and fixed=mask for features that may not change"
        raise InputError(f"scale holds {float(values[wrong][0]):g}: {hint}")
    return values


def _check_fixed(fixed: Any) -> Tensor | None:
    if fixed is None:
        return None
    try:
        mask = torch.as_tensor(fixed)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"fixed is {fixed!r}: {MASK}") from None
    if mask.dtype != torch.bool:
        kind = str(mask.dtype).removeprefix("torch.")
        raise InputError(f"fixed is {kind}: {MASK}")
    if bool(mask.all()):
        raise InputError("fixed is True everywhere, so nothing can change: leave some features free")
    return mask


def _digest(both: Tensor) -> str:
    """A digest of lower and upper bounds that is the same however far they are expanded to the shape of an input."""
    for dim in range(1, both.ndim):
        first = both.narrow(dim, 0, 1)
        both = first if bool((both == first).all()) else both
    while both.ndim > 2 and both.shape[1] == 1:
        both = both[:, 0]
    return sha256(f"{tuple(both.shape)}".encode() + both.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def _fit(values: Tensor, images: Tensor, what: str) -> Tensor:
    """Expand values to the shape of one of these images; a single number is returned unchanged."""
    try:
        return values.expand(images.shape[1:]) if values.ndim else values
    except RuntimeError:
        n, shape = len(values), tuple(images.shape[1:])
        shapes = f"{tuple(values.shape)} {'do' if what == 'bounds' else 'does'} not fit inputs of shape {shape}"
        hint = "give one value for all features, or one per feature"
        if values.ndim == 1 and len(shape) > 1 and n == shape[0]:
            hint = f"for one value per channel give shape {(n,) + (1,) * (len(shape) - 1)}"
        raise InputError(f"{what} of shape {shapes}: {hint}") from None
