"""Axes of the charts: range and bins of the margins, as numbers and as Altair channels, and labels of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from marginattack.report.series import Series
from marginattack.runs.levels import Level

BINS = 48  # of a histogram, about
TICKS = 8  # of an axis in 1/255, at most
PIXEL_STEPS = (*(m * 10.0**p for p in range(-4, 0) for m in (1, 2, 5)), 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


@dataclass(frozen=True, kw_only=True)
class MarginAxis:
    """Range and bins for the margins of one norm, shared by its charts and tables."""

    norm: str
    symbol: str
    smallest: float
    largest: float  # margin shown, before rounding
    bin_width: float
    scale: float = 1.0  # of the distances that are shown: 1, or 255 for pixels up to 255
    eps: tuple[float, ...] = ()  # that the user stated
    pixels: bool = False  # whether distances are written as k/255

    @property
    def limit(self) -> float:
        """Where the axis ends."""
        return float(f"{self.largest:.4g}")

    @property
    def log_start(self) -> float:
        """Where a logarithmic axis starts."""
        return min(float(f"{self.smallest:.2g}"), self.limit / 2)

    @property
    def pixel_step(self) -> float:
        """The distance of ticks on an axis in 1/255."""
        return find_pixel_step(self.limit)

    def text(self, value: str) -> str:
        """Return the Vega expression of a distance as text, in the unit of the page."""
        plain = f"format({value} * unit_scale, '.4~r')"
        fraction = f"unit_scale === 1 && {value} > 0"
        return f"({fraction} ? format({value} * 255, '.3~r') + '/255' : {plain})" if self.pixels else plain

    def labels(self, *, end: float | None = None, **options: Any) -> alt.Axis:
        """Return the ticks and labels of an axis of distances up to the limit of the margins, or to another end."""
        if not self.pixels:
            return alt.Axis(format=".4~r", tickCount=6, **options)
        end = self.limit if end is None else end
        return self._pixel_labels(f"{end * 1.0001} * unit_scale", f"{find_pixel_step(end) * 255}", **options)

    def drawn_labels(self, **options: Any) -> alt.Axis:
        """Return the ticks and labels of a vertical axis that ends where the drawn distances do."""
        if not self.pixels:
            return alt.Axis(format=".4~r", tickCount=6, **options)
        step = f"{PIXEL_STEPS[-1]:g}"
        for finer in reversed(PIXEL_STEPS[:-1]):
            step = f"span(domain('y')) <= {TICKS * finer / 255:.4g} * unit_scale ? {finer:g} : {step}"
        return self._pixel_labels("domain('y')[1] * 1.0001", f"({step})", **options)

    def _pixel_labels(self, end: str, step: str, **options: Any) -> alt.Axis:
        """Return the axis with ticks from 0 to an end, in steps of 1/255; both are Vega expressions."""
        ticks = alt.ExprRef(f"sequence(0, {end}, {step} / 255 * unit_scale)")
        return alt.Axis(values=ticks, labelExpr=self.text("datum.value / unit_scale"), **options)

    def log_labels(self, **options: Any) -> alt.Axis:
        """Return the ticks and labels of a logarithmic axis of distances."""
        if not self.pixels:
            return alt.Axis(format=".4~r", tickCount=6, **options)
        ticks = alt.ExprRef(f"[{', '.join(f'{step:g} / 255 * unit_scale' for step in PIXEL_STEPS)}]")
        return alt.Axis(values=ticks, labelExpr=self.text("datum.value / unit_scale"), **options)

    def eps_grid(self) -> np.ndarray:
        """Return the ε of the curves: multiples of half a bin, even ratios for a log axis, and k/255 for ℓ∞."""
        half = self.bin_width / 2
        multiples = half * np.arange(self.largest // half + 2)
        ratios = np.geomspace(max(self.smallest, self.largest * 1e-4), self.largest, 60)
        pixels = np.arange(1, 17 if self.norm == "linf" else 1) / 255
        return np.unique([*round_digits(np.concatenate([multiples, ratios, pixels]), 4), *self.eps])

    def round_levels(self, bins: int) -> list[float]:
        """Return the ε of a table: those that the user stated, or multiples of this many bins."""
        if self.eps:
            return list(self.eps)
        if self.pixels:
            step = round(255 * self.pixel_step, 6)
            return [number * step / 255 for number in range(int(self.limit / self.pixel_step) + 2)]
        width = float(f"{self.bin_width * bins:.6g}")
        return round_digits(width * np.arange(int(self.limit / width) + 2), 6)


def find_pixel_step(end: float) -> float:
    """Return the distance of ticks on an axis in 1/255 with this end."""
    return next((step for step in PIXEL_STEPS if 255 * end / step <= TICKS), PIXEL_STEPS[-1]) / 255


def fit_axis(group: Sequence[Series], eps: Sequence[float] = (), unit: float | int = 1) -> MarginAxis:
    """Fit the axis to the margins of all series of a norm, without a few outliers.

    ``eps`` is in ``unit``, 1 or 255, which is also the initial unit of the charts.
    """
    found = np.concatenate([series.columns["distance"][series.found] for series in group])
    low, high = 0.1, 1.0  # if no adversarial example was found
    if len(found):
        low, high = float(found.min()), float(min(found.max() * 1.02, 2 * np.quantile(found, 0.95)))
    pixels = group[0].norm == "linf" and high <= 1 and all(series.eight_bit for series in group)
    whole = 255 if pixels else 1
    power = 10.0 ** np.floor(np.log10(whole * high / BINS))
    width = float(next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= whole * high / BINS * 0.999)) / whole
    norm, scale = group[0].norm, 1.0 if group[0].norm == "l0" else float(unit)
    return MarginAxis(
        norm=norm, symbol=group[0].symbol, smallest=low, largest=high, bin_width=width, scale=scale,
        eps=tuple(sorted(level.divided_by(scale) if isinstance(level, Level) else level / scale for level in eps)),
        pixels=pixels,
    )  # fmt: skip


def round_digits(values: np.ndarray, digits: int = 5) -> list[float]:
    """Round to significant digits, which keeps the page small."""
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
    labels = axis.labels(grid=False)
    return alt.X("x:Q", title=f"margin, {axis.symbol}", scale=margin_scale(axis), axis=labels, **options)


def margin_y(axis: MarginAxis, field: str, quantity: str = "margin", **options: Any) -> alt.Y:
    """Return a vertical axis of distances."""
    labels = axis.labels() if quantity == "margin" else axis.drawn_labels()
    return alt.Y(field, title=f"{quantity}, {axis.symbol}", axis=labels, **options)


def class_labels(angle: int = 0, *, every: bool = False) -> alt.Axis:
    """Return the labels of an axis of classes: all, or as many as fit."""
    first = "length(datum.label) > 20 ? split(datum.label, ',')[0] : datum.label"  # of several names of one class
    overlap = False if every else alt.Undefined
    return alt.Axis(
        labelLimit=130, labelAngle=angle, labelExpr=first, labelOverlap=overlap, domain=False, ticks=False
    )  # fmt: skip
