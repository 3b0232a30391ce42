"""The data of the charts: one ``View`` per norm, with named datasets that stay small for large runs.

Columns of class and series names hold indices; ``Dataset.names`` has the list that they index. The page's script and
``Dataset.rows`` decode them in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginattack.report.axes import MarginAxis, bin_numbers, fit_axis, round_digits
from marginattack.report.comparison import pair_series
from marginattack.report.convergence import find_spans, trace_columns
from marginattack.report.series import Series
from marginattack.report.summary import count_class_pairs, summarize_classes

MAX_ROWS = 8_000  # per page; with more samples, they are counted in cells
MAX_CLASSES = 30  # with more classes, charts show the weakest ones
WEAKEST = 20
MAX_PAIRED = 2_000  # points of a comparison
MAX_COMPARED = 5  # series of a comparison, including the first
MIN_UNCERTAINTY = 1e-10  # smallest 1 - confidence that is drawn

Columns = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Columns of equal length, and the names that some of them index."""

    columns: Columns
    names: dict[str, list[str]]

    def rows(self) -> list[dict[str, Any]]:
        """Return one record per row, with names instead of indices."""
        decoded = {
            name: [self.names[name][i] for i in values] if name in self.names else values
            for name, values in self.columns.items()
        }
        return [dict(zip(decoded, values, strict=True)) for values in zip(*decoded.values(), strict=True)]


@dataclass(frozen=True, kw_only=True)
class View:
    """Everything that is drawn for one norm."""

    norm: str
    group: Sequence[Series]
    axis: MarginAxis
    classes: list[str]
    shown: list[str]  # classes that charts show: all, or the weakest of each series
    binned: bool
    moves: list[str]
    phased: bool  # whether the moves of the traces are phases, such as Race's
    datasets: dict[str, Dataset]

    @property
    def strips(self) -> int:
        """The number of classes that the charts of one series show."""
        return min(len(self.shown), WEAKEST) if len(self.classes) > MAX_CLASSES else len(self.shown)

    @property
    def series_names(self) -> list[str]:
        return [series.name for series in self.group]

    def dataset_name(self, name: str) -> str:
        """Return the name of a dataset in specs, unique in the page."""
        return f"{name}_{self.norm}"


def build_views(groups: dict[str, list[Series]], eps: Sequence[float] = (), unit: float | int = 1) -> list[View]:
    """Build the view of each norm; samples are counted in cells if there are too many for a page."""
    rows = sum(int(series.found.sum()) for group in groups.values() for series in group)
    return [build_view(group, fit_axis(group, eps, unit), binned=rows > MAX_ROWS) for group in groups.values()]


def build_view(group: Sequence[Series], axis: MarginAxis, *, binned: bool) -> View:
    """Build the view of the series of one norm."""
    classes = max((series.classes for series in group), key=len)
    if any(series.classes != classes[: len(series.classes)] for series in group):
        classes = [str(number) for number in range(len(classes))]  # the runs name their classes differently
    chosen = [_select_classes(series, len(classes)) for series in group]
    shown = [*dict.fromkeys(number for numbers in chosen for number in numbers)]
    columns = {
        "curve": _concatenate([_curve_columns(series, axis) for series in group]),
        "rows": _concatenate([_sample_columns(series, axis, binned) for series in group]),
        "strips": _concatenate([_strip_columns(*each, axis) for each in zip(group, chosen, strict=True)]),
        "pairs": _concatenate([_pair_columns(series, shown) for series in group]),
        "trace": _concatenate([trace_columns(series) for series in group]),
        "paired": _concatenate([_paired_columns(group[0], series) for series in group[:MAX_COMPARED]]),
    }
    columns["spans"] = find_spans(columns["trace"])
    moves = list(dict.fromkeys(columns["trace"]["move"]))
    columns["trace"]["move"] = [moves.index(move) for move in columns["trace"]["move"]]
    names = {"series": [series.name for series in group], "from": classes, "to": classes, "move": moves}
    return View(
        norm=axis.norm, group=group, axis=axis, classes=classes, shown=[classes[i] for i in shown], binned=binned,
        moves=moves, phased=bool(columns["spans"]["series"]),
        datasets={name: Dataset(columns=each, names=names) for name, each in columns.items()},
    )  # fmt: skip


def _select_classes(series: Series, classes: int) -> list[int]:
    """Return the classes for the charts of a series: all, or those with the smallest medians, these first."""
    if classes <= MAX_CLASSES:
        return list(range(classes))
    return [row.number for row in sorted(summarize_classes(series), key=lambda row: row.median)[:WEAKEST]]


def _concatenate(parts: Sequence[Columns]) -> Columns:
    """Concatenate the columns of all series, and add the index of each row's series."""
    merged: Columns = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    lengths = [len(next(iter(part.values()))) for part in parts]
    return {**merged, "series": np.repeat(np.arange(len(parts)), lengths).tolist()}


def _curve_columns(series: Series, axis: MarginAxis) -> Columns:
    """One row per ε: robust accuracy in % with its interval, and the certified share of it."""
    levels = axis.eps_grid()
    hits, *shares = np.array(series.robust_accuracy(levels)).T
    percent = [round_digits(100 * share, 4) for share in shares]
    certified = [None if share is None else float(f"{100 * share:.4g}") for share in series.certified_accuracy(levels)]
    return {"eps": levels.tolist(), "hits": hits.astype(int).tolist(), "certified": certified,
            **dict(zip(("robust", "low", "high"), percent, strict=True))}  # fmt: skip


def _sample_columns(series: Series, axis: MarginAxis, binned: bool) -> Columns:
    """One row per sample with a margin: d, the margin, and u = 1 - confidence, to distinguish 99.9 % from 99.99 %.

    If binned, one row per cell of two classes, half a bin of d and a third of a decade of u, with n samples.
    """
    label, to, distance, confidence = (
        series.columns[name][series.found] for name in ("label", "adversarial_label", "distance", "confidence")
    )
    u, n = np.clip(1 - confidence, MIN_UNCERTAINTY, 1), np.ones_like(label)
    if binned:
        half = axis.bin_width / 2
        cells = np.stack([label, to, bin_numbers(distance, half), np.ceil(3 * np.log10(u))]).astype(np.int64)
        (label, to, bins, thirds), n = np.unique(cells, axis=1, return_counts=True)
        distance, u = (bins + 0.5) * half, 10 ** ((thirds - 0.5) / 3)
    named = [] if binned else [series.sample_name(row) for row in np.flatnonzero(series.found).tolist()]
    return {"d": round_digits(distance), "u": round_digits(u, 3), "from": label.tolist(), "to": to.tolist(),
            "name": named or [""] * len(n), "n": n.tolist()}  # fmt: skip


def _strip_columns(series: Series, shown: list[int], axis: MarginAxis) -> Columns:
    """One row per class and non-empty bin; each row has the quartiles of its class."""
    label, distance = series.columns["label"], series.columns["distance"]
    names = ("from", "number", "bin", "n", "share", "of", "first", "q1", "q2", "q3")
    records: list[tuple[Any, ...]] = []
    for row in summarize_classes(series):
        if row.number not in shown:
            continue
        margins = np.minimum(distance[series.found & (label == row.number)], axis.largest)
        bins, counts = np.unique(bin_numbers(margins, axis.bin_width), return_counts=True)
        quartiles = round_digits(np.minimum([row.low, row.median, row.high], axis.largest), 4)
        for i, (number, n) in enumerate(zip(bins.tolist(), counts.tolist(), strict=True)):
            share = float(f"{n / counts.max():.2g}")
            records.append((row.number, row.number, number, n, share, row.n, int(i == 0), *quartiles))
    return {name: [record[i] for record in records] for i, name in enumerate(names)}


def _pair_columns(series: Series, shown: list[int]) -> Columns:
    """One row per pair of classes that the matrix shows, with the key by which the chart finds it."""
    whole = len(series.classes) <= MAX_CLASSES  # else there is no matrix
    names, pairs = series.classes, [pair for pair in count_class_pairs(series) if whole and {*pair[:2]} <= {*shown}]
    return {"pair": [f"{series.name} {names[start]} {names[end]}" for start, end, _, _ in pairs],
            "all": [n for _, _, n, _ in pairs], "median": [float(f"{m:.4g}") for _, _, _, m in pairs]}  # fmt: skip


def _paired_columns(first: Series, other: Series) -> Columns:
    """One row per sample that both measured: its margin in the first series, a, and in the other, b; evenly thinned.

    A margin that was not found is None.
    """
    rows, a, b = pair_series(first, other) if other is not first else (np.array([], int), np.array([]), np.array([]))
    kept = np.arange(0, len(rows), -(-len(rows) // MAX_PAIRED) or 1)
    left, right = ([value if np.isfinite(value) else None for value in round_digits(side[kept], 9)] for side in (a, b))
    return {"a": left, "b": right, "every": [-(-len(rows) // MAX_PAIRED)] * len(kept),
            "name": [other.sample_name(row) for row in rows[kept].tolist()],
            "from": other.columns["label"][rows[kept]].tolist()}  # fmt: skip
