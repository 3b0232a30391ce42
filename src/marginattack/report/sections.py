"""What the page's template shows besides the charts: runs, findings, tables and samples of each norm."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marginattack.analysis.statistics import median_or_nan
from marginattack.report import gallery
from marginattack.report.axes import bin_numbers
from marginattack.report.brackets import summarize_brackets
from marginattack.report.charts import plots_with_data
from marginattack.report.datasets import View
from marginattack.report.series import Series
from marginattack.report.summary import count_class_pairs, find_suspicious, summarize_classes
from marginattack.report.tables import to_csv
from marginattack.storage.run_folder import RunFolder

GRADES = ("grave", "warning", "note")
CONFIDENCE_EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
MAX_PAIRS = 20


def describe_runs(stores: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return each run with its settings as dotted names and, by part, the number of missing shards."""
    return [
        {"store": store, "settings": _flatten(store.manifest.get("settings")),
         "preprocessing": _flatten(store.manifest["model"].get("preprocessing")),
         "missing": store.count_missing()}
        for store in stores
    ]  # fmt: skip


def _flatten(tree: Any, name: str = "") -> list[tuple[str, str]]:
    """Flatten a tree of settings to dotted names, without those that are None."""
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in _flatten(value, f"{name}.{key}".strip("."))]
    return [] if tree is None else [(name, str(tree))]


def collect_findings(stores: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Collect the findings of all runs, the most severe first; with several runs, each names its run."""
    findings = [{**finding, "run": str(store.path) if len(stores) > 1 else ""}
                for store in stores for finding in store.findings]  # fmt: skip
    return sorted(findings, key=lambda finding: [*GRADES, finding["grade"]].index(finding["grade"]))


def describe_view(view: View) -> dict[str, Any]:
    """Return everything that the template shows about one norm besides its charts."""
    levels = view.axis.round_levels(4)
    curves = zip(levels.tolist(), *(series.robust_accuracy(levels) for series in view.group), strict=True)
    return {
        "norm": view.norm, "symbol": view.axis.symbol, "names": view.series_names, "binned": view.binned,
        "charts": [plot.name for plot in plots_with_data(view)], "shown": view.shown, "classes": len(view.classes),
        "levels": list(curves), "certified": [series.certified_accuracy(levels) for series in view.group],
        "brackets": [(series.name, summarize_brackets(series)) for series in view.group if series.bounded],
        "bins": _tabulate_histogram(view), "confidence": _tabulate_confidence(view),
        "traces": view.datasets["trace"].rows(), "details": [_describe_series(series) for series in view.group],
        "beyond": sum(int((s.columns["distance"][s.found] > view.axis.limit).sum()) for s in view.group),
    }  # fmt: skip


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
        masks = [s.found & (s.columns["confidence"] > low) & (s.columns["confidence"] <= high) for s in view.group]
        margins = [s.columns["distance"][mask] for s, mask in zip(view.group, masks, strict=True)]
        rows.append((f"{100 * low:g} to {100 * high:g} %", [(len(m), median_or_nan(m)) for m in margins]))
    return rows


def _describe_series(series: Series) -> dict[str, Any]:
    """Return the classes, pairs of classes, gallery and suspicious samples of a series."""
    selected, suspicious, names = gallery.select_rows(series), find_suspicious(series), series.classes
    rows = [row for members in selected.values() for row in members] + [row for row, _ in suspicious]
    pictures = gallery.load_pictures(series, rows)
    pairs = sorted(count_class_pairs(series), key=lambda pair: -pair[2])[:MAX_PAIRS]
    listed = [_describe_sample(series, row, pictures) | {"why": reason} for row, reason in suspicious]
    header = ("id", "name", "input", "label", "to", "distance", "confidence", "why")
    return {
        "name": series.name, "classes": summarize_classes(series), "pictured": bool(pictures), "suspicious": listed,
        "pairs": [(names[start], names[end], n, median) for start, end, n, median in pairs],
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
        "id": int(value["id"]), "name": str(value.get("name", "")), "input": str(value["input"]),
        "label": names[int(value["label"])],
        "prediction": names[int(value["prediction"])], "confidence": float(value["confidence"]),
        "to": names[int(value["adversarial_label"] if measured else value["prediction"])],
        "distance": float(value["distance"]), "passes": int(value["forwards"] + value["backwards"]),
        "at_8_bits": float(value["distance_255"]) if "distance_255" in value else None, "picture": pictures.get(row),
    }  # fmt: skip
