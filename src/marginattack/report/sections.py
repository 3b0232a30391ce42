"""What the page's template shows besides the charts: findings, comparisons, tables and samples of each norm."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marginattack.analysis.statistics import median_or_nan
from marginattack.report import gallery
from marginattack.report.axes import bin_numbers
from marginattack.report.charts import plots_with_data
from marginattack.report.comparison import compare_series
from marginattack.report.datasets import View
from marginattack.report.series import Series
from marginattack.report.summary import count_class_pairs, find_suspicious, summarize_classes
from marginattack.report.tables import to_csv

GRADES = ("grave", "warning", "note")
CONFIDENCE_EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
MAX_PAIRS = 20


def collect_findings(every: Sequence[Series]) -> list[dict[str, Any]]:
    """Collect the findings of all runs, the most severe first; with several runs, each names its run."""
    stores = {str(series.store.path): series.store for series in every}
    findings = [
        {**finding, "run": path if len(stores) > 1 else ""}
        for path, store in stores.items()
        for finding in store.findings
    ]
    return sorted(findings, key=lambda finding: [*GRADES, finding["grade"]].index(finding["grade"]))


def compare_with_first(view: View) -> list[dict[str, Any]]:
    """Compare the first series of a norm with each other one."""
    first, *others = view.group
    pairs = [(other, compare_series(first, other)) for other in others]
    return [
        {"symbol": view.axis.symbol, "a": first.name, "b": other.name, "pairs": pair}
        for other, pair in pairs
        if pair is not None and pair.n > 1
    ]


def describe_view(view: View) -> dict[str, Any]:
    """Return everything that the template shows about one norm besides its charts."""
    limit = view.axis.limit
    return {
        "norm": view.norm, "symbol": view.axis.symbol, "names": view.series_names, "binned": view.binned,
        "charts": [plot.name for plot in plots_with_data(view)], "shown": view.shown, "classes": len(view.classes),
        "levels": _tabulate_curve(view), "bins": _tabulate_histogram(view), "confidence": _tabulate_confidence(view),
        "traced": _summarize_traces(view), "details": [_describe_series(series) for series in view.group],
        "beyond": sum(int((s.columns["distance"][s.found] > limit).sum()) for s in view.group),
    }  # fmt: skip


def _tabulate_curve(view: View) -> list[tuple[Any, ...]]:
    """One row per ε; for each series its robust accuracy with the interval."""
    levels = view.axis.round_levels(4)
    curves = [series.robust_accuracy(levels) for series in view.group]
    return list(zip(levels.tolist(), *(zip(c.accuracy, c.low, c.high, strict=True) for c in curves), strict=True))


def _tabulate_histogram(view: View) -> list[tuple[float, float, list[int]]]:
    """One row per non-empty bin: its edges and the number of samples of each series."""
    width = view.axis.bin_width
    last = int(np.ceil(view.axis.limit / width))
    bins = [bin_numbers(series.columns["distance"][series.found], width) for series in view.group]
    counts = np.array([np.bincount(numbers[numbers < last], minlength=last) for numbers in bins]).T.tolist()
    return [(k * width, (k + 1) * width, row) for k, row in enumerate(counts) if any(row)]


def _tabulate_confidence(view: View) -> list[tuple[str, list[tuple[int, float]]]]:
    """One row per range of confidence: number of samples and median margin of each series."""
    rows = []
    for low, high in pairwise(CONFIDENCE_EDGES):
        cells = []
        for series in view.group:
            confidence = series.columns["confidence"]
            margins = series.columns["distance"][series.found & (confidence > low) & (confidence <= high)]
            cells.append((len(margins), median_or_nan(margins)))
        rows.append((f"{100 * low:g} to {100 * high:g} %", cells))
    return rows


def _summarize_traces(view: View) -> list[dict[str, Any]]:
    """One record per traced sample: queries, passes, passes until the first success, and the final distance."""
    samples: dict[tuple[str, int], dict[str, Any]] = {}
    for row in view.datasets["trace"].rows():
        sample = samples.setdefault((row["series"], row["id"]), {"first_success": None})
        sample |= {**row, "queries": row["query"] + 1}
        if sample["first_success"] is None and row["best"] is not None:
            sample["first_success"] = row["passes"]
    return list(samples.values())


def _describe_series(series: Series) -> dict[str, Any]:
    """Return the classes, pairs of classes, gallery and suspicious samples of a series."""
    selected, suspicious = gallery.select_rows(series), find_suspicious(series)
    rows = [row for members in selected.values() for row in members]
    pictures = gallery.load_pictures(series, [*rows, *(sample.row for sample in suspicious)])
    pairs = sorted(count_class_pairs(series), key=lambda pair: -pair.n)[:MAX_PAIRS]
    listed = [_describe_sample(series, each.row, pictures) | {"why": each.reason} for each in suspicious]
    header = ("id", "input", "label", "to", "distance", "confidence", "why")
    return {
        "name": series.name, "classes": summarize_classes(series), "pictured": bool(pictures), "suspicious": listed,
        "pairs": [(series.classes[pair.start], series.classes[pair.end], pair.n, pair.median) for pair in pairs],
        "gallery": {
            title: [_describe_sample(series, row, pictures) for row in members] for title, members in selected.items()
        },
        "csv": to_csv(header, [[sample[name] for name in header] for sample in listed]),
    }  # fmt: skip


def _describe_sample(series: Series, row: int, pictures: Mapping[int, gallery.Picture]) -> dict[str, Any]:
    names = series.classes
    value = {name: column[row] for name, column in series.columns.items()}
    measured = bool(series.measured[row])
    return {
        "id": int(value["id"]), "input": str(value["input"]), "label": names[int(value["label"])],
        "prediction": names[int(value["prediction"])], "confidence": float(value["confidence"]),
        "to": names[int(value["adversarial_label"] if measured else value["prediction"])],
        "distance": float(value["distance"]), "passes": int(value["forwards"] + value["backwards"]),
        "at_8_bits": float(value["distance_255"]) if "distance_255" in value else None, "picture": pictures.get(row),
    }  # fmt: skip
