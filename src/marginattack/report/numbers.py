"""Number formats: no exponents, ε as k/255 for 8-bit pixels. ``page.js`` follows the same rules."""

import math

import numpy as np

from marginattack.evaluation import is_fraction
from marginattack.runs.levels import Level

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles of the margins near which ε are chosen
LEAST = 1e-6  # smaller numbers are shown as "< 0.000001"


def format_number(value: float | int | None, digits: int = 4, *, like: float | None = None) -> str:
    """Format with significant digits and without an exponent; infinity means that nothing was found.

    ``like`` is the upper end of an interval: both ends get its number of decimals.
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "not found"
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace("-", "−")
    if 0 < size < LEAST:
        return "< 0.000001"
    if like is not None and math.isfinite(like) and float(text := f"{size:.{_count_decimals(like, digits)}f}"):
        return text
    text = f"{size:.{_count_decimals(size, digits)}f}"
    return ("−" if value < 0 else "") + (text.rstrip("0").rstrip(".") if "." in text else text)


def _count_decimals(size: float | int, digits: int) -> int:
    return 0 if size <= 0 else max(digits - 1 - math.floor(math.log10(size)), 0)


def format_beside(value: float, largest: float, digits: int = 3) -> str:
    """Format a number of a column; one far below 0.001 and far below the largest is only shown as small."""
    least = min(1e-3, 10.0 ** (math.floor(math.log10(largest)) - 3)) if largest > 0 else 0.0
    if 0 < abs(value) < least:
        return ("< " if value > 0 else "> −") + format_number(least)
    return format_number(value, digits)


def format_distance(
    value: float | int | None, *, pixels: bool = False, scale: float | int = 1, like: float | None = None
) -> str:
    """Format a distance times ``scale``: as the user wrote it, or as k/255 for 8-bit pixels."""
    if isinstance(value, Level) and scale == 1:
        return value.text
    if value is None or not math.isfinite(value):
        return format_number(value)
    if scale == 1 and value > 0 and (pixels or is_fraction(value)):
        return f"{format_number(255 * value, 3, like=None if like is None else 255 * like)}/255"
    return format_number(value * scale, like=None if like is None else scale * like)


def choose_levels(margins: np.ndarray, *, pixels: bool = False) -> list[float]:
    """Choose ε where the robust accuracy falls: round numbers near quantiles of the margins, k/255 for pixels."""
    known = margins[np.isfinite(margins) & (margins > 0)]
    if not len(known):
        return []
    unit = 255 if pixels else 1
    steps = np.array([m * 10.0**p for p in range(-6, 0 if pixels else 5) for m in (1, 2, 5)])
    round_ = np.concatenate([steps, 2.0 ** np.arange(8)]) if pixels else steps
    wanted = unit * np.quantile(known, LEVELS)
    nearest = np.abs(np.log(round_[:, None] / wanted)).argmin(0)
    return sorted({float(f"{round_[i]:.1g}") / unit if round_[i] < 1 else float(round_[i]) / unit for i in nearest})


def format_percent(value: float, digits: int = 1) -> str:
    """Format a share in percent, with a non-breaking space."""
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f}\u00a0%"


def format_confidence(value: float) -> str:
    """Format a confidence in percent, with enough digits to distinguish it from 100 %."""
    digits = 1 if value < 0.9945 else min(1 - math.floor(math.log10(max(100 * (1 - value), 1e-6))), 6)
    text = f"{100 * value:.{digits}f}"
    return "–" if math.isnan(value) else "100 %" if float(text) == 100 else f"{text} %"


def format_p(value: float) -> str:
    """Format a p-value as "p = …" or "p < 0.0001"."""
    return "p < 0.0001" if value < 1e-4 else f"p = {format_number(value, 2)}"
