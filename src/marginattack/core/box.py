"""Box: the bounds of the inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from marginattack.core.types import Bound, Mask, Points
from marginattack.errors import InputError


@dataclass(frozen=True, eq=False)
class Box:
    """All points between ``lo`` and ``hi``, which broadcast against flat points."""

    lo: Bound
    hi: Bound

    def clamp(self, x: Points) -> Points:
        """The nearest point of the box."""
        return torch.clamp(x, self.lo, self.hi)

    def contains(self, x: Points) -> Mask:
        """Whether each point lies inside."""
        return ((x >= self.lo) & (x <= self.hi)).all(1)

    def farthest(self, x: Points) -> Points:
        """Per coordinate, the distance from x to the bound that is farther away."""
        return torch.maximum(self.hi - x, x - self.lo)

    @property
    def width(self) -> Bound:
        """Per coordinate, hi − lo; 0 if a bound is infinite."""
        width = self.hi - self.lo
        return torch.where(torch.isfinite(width), width, 0)

    @property
    def shared(self) -> bool:
        """Whether all points have the same bounds."""
        return len(self.lo) == 1 == len(self.hi)

    def select(self, rows: Tensor) -> "Box":
        """The bounds of some points."""
        return self if self.shared else Box(self.lo[rows], self.hi[rows])

    def require_finite(self, who: str) -> None:
        """Raise InputError unless every bound is finite, for attacks that move from bound to bound."""
        if not bool(torch.isfinite(self.hi - self.lo).all()):
            raise InputError(f"{who} needs finite bounds: pass bounds=(lo, hi)")
