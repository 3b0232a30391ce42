"""The space as the settings of margins, bounds and runs state it, in one form for comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Stated:
    """Values per feature, as far as settings state them."""

    ends: tuple[float, float] | None  # the least and the greatest; None if only the digest of a run is known
    varies: bool  # between features
    detail: tuple[str, Any] | None = None  # a form, and what it says of all features; other forms say nothing of it

    def agrees(self, other: "Stated") -> bool:
        """Whether these may be the same values: nothing that both state differs."""
        if self.varies != other.varies:
            return False
        if self.ends and other.ends and not all(map(_close, self.ends, other.ends)):
            return False
        mine, theirs = self.detail, other.detail
        return mine is None or theirs is None or mine[0] != theirs[0] or mine[1] == theirs[1]

    def __str__(self) -> str:
        if self.ends is None:
            return "many values"
        return f"({self.ends[0]:g}, {self.ends[1]:g}){' per feature' if self.varies else ''}"


def stated_bounds(settings: Mapping[str, Any]) -> Stated:
    """The bounds; a run lists the lower ones, then the upper ones."""
    if "bounds" in settings:
        low, high = map(float, settings["bounds"])
        digest = settings.get("box")
        return Stated(ends=(low, high), varies=digest is not None, detail=digest and ("box", digest))
    stated = settings.get("space", {}).get("bounds", (0, 1))
    if isinstance(stated, str):
        return Stated(ends=None, varies=True, detail=("digest", stated))
    numbers = [float(each) for each in stated]
    low_ends, high_ends = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    varies = len({*low_ends}) > 1 or len({*high_ends}) > 1
    return _listed((min(low_ends), max(high_ends)), varies, numbers)


def stated_scale(settings: Mapping[str, Any]) -> Stated:
    """The scale; 1 by default."""
    return _stated_values(settings.get("scale", settings.get("space", {}).get("scale", (1,))))


def stated_fixed(settings: Mapping[str, Any]) -> Stated:
    """The fixed features, from 0 to 1; none by default. Of ``measure``, it is known only that there are some."""
    if "fixed" in settings:
        return Stated(ends=(0.0, 1.0), varies=True)
    return _stated_values(settings.get("space", {}).get("fixed", (0,)))


def _stated_values(stated: str | Sequence[Any]) -> Stated:
    if isinstance(stated, str):
        return Stated(ends=None, varies=True, detail=("digest", stated))
    numbers = [float(each) for each in stated]
    return _listed((min(numbers), max(numbers)), len({*numbers}) > 1, numbers)


def _listed(ends: tuple[float, float], varies: bool, numbers: list[float]) -> Stated:
    return Stated(ends=ends, varies=varies, detail=(f"{len(numbers)} numbers", numbers) if varies else None)


def _close(a: float, b: float) -> bool:
    return isclose(a, b, rel_tol=1e-6)  # a float32 and the number that it stands for
