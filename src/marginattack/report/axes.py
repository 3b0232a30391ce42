"""The axis of margins: its range and its bins, as numbers and as Altair channels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from marginattack.report.series import Series

BINS = 48  # of a histogram, about


@dataclass(frozen=True, kw_only=True)
class MarginAxis:
    """Range and bins for the margins of one norm, shared by its charts and tables."""

    norm: str
    symbol: str
    smallest: float  # margin; NaN where none was found
    largest: float  # margin shown, before rounding
    bin_width: float

    @property
    def limit(self) -> float:
        """Where the axis ends."""
        return float(f"{self.largest:.4g}")

    @property
    def log_start(self) -> float:
        """Where a logarithmic axis starts."""
        lowest = 0.1 if np.isnan(self.smallest) else float(f"{self.smallest:.2g}")
        return min(lowest, self.limit / 2)

    def eps_grid(self) -> np.ndarray:
        """Return the ε of the curves: multiples of half a bin, even ratios for a log axis, and k/255 for ℓ∞."""
        if np.isnan(self.smallest):
            return np.array([0.0, 1.0])
        half = self.bin_width / 2
        multiples = half * np.arange(self.largest // half + 2)
        ratios = np.geomspace(max(self.smallest, self.largest * 1e-4), self.largest, 60)
        pixels = np.arange(1, 17 if self.norm == "linf" else 1) / 255
        return np.unique(round_digits(np.concatenate([multiples, ratios, pixels]), 4))

    def round_levels(self, bins: int) -> np.ndarray:
        """Return the ε of a table: multiples of so many bins."""
        width = float(f"{self.bin_width * bins:.6g}")
        return np.array(round_digits(width * np.arange(int(self.limit / width) + 2), 6))


def fit_axis(group: Sequence[Series]) -> MarginAxis:
    """Fit the axis to the margins of all series of a norm, without a few stragglers that would squeeze the others."""
    found = np.concatenate([series.columns["distance"][series.found] for series in group])
    smallest, largest = float("nan"), 1.0
    if len(found):
        smallest, largest = float(found.min()), float(min(found.max() * 1.02, 2.5 * np.quantile(found, 0.99)))
    norm, symbol = group[0].norm, group[0].symbol
    return MarginAxis(
        norm=norm, symbol=symbol, smallest=smallest, largest=largest, bin_width=_round_width(largest / BINS)
    )


def _round_width(rough: float) -> float:
    """Round a width of bins up to 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(rough))
    return float(min((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999), default=rough))


def round_digits(values: np.ndarray, digits: int = 5) -> list[float]:
    """Round to significant digits: all that a page needs, in few characters."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def bin_numbers(values: np.ndarray, width: float) -> np.ndarray:
    """Return the bin of each value, rounded as in the page; a value on an edge belongs to the bin below."""
    return np.maximum(np.ceil(np.array(round_digits(values)) / width - 1e-9).astype(np.int64) - 1, 0)


def margin_scale(axis: MarginAxis, *, log: bool = False) -> alt.Scale:
    """Return the scale from 0, or from the smallest margin, to the limit, in the page's unit."""
    start = axis.log_start if log else 0
    domain = [alt.ExprRef(f"{start} * unit_scale"), alt.ExprRef(f"{axis.limit} * unit_scale")]
    return alt.Scale(type="log" if log else "linear", domain=domain, nice=False)


def margin_x(axis: MarginAxis, **options: Any) -> alt.X:
    """Return the horizontal axis of margins."""
    labels = alt.Axis(format="~g", tickCount=6, grid=False)
    return alt.X("x:Q", title=f"margin, {axis.symbol}", scale=margin_scale(axis), axis=labels, **options)


def margin_y(axis: MarginAxis, field: str, quantity: str = "margin", **options: Any) -> alt.Y:
    """Return a vertical axis of distances."""
    return alt.Y(field, title=f"{quantity}, {axis.symbol}", axis=alt.Axis(format="~g", tickCount=6), **options)
