"""Data of the page's template besides the charts: runs, findings, tables and samples of each norm."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marginattack.analysis.diagnose.findings import GRADES
from marginattack.analysis.statistics import median_or_nan
from marginattack.report.axes import bin_numbers
from marginattack.report.brackets import summarize_brackets
from marginattack.report.charts import plots_with_data
from marginattack.report.comparison import compare_series, find_changed_sides
from marginattack.report.convergence import extrapolate, judge_budget, summarize_phases, tabulate_anytime
from marginattack.report.datasets import MAX_CLASSES, MAX_COMPARED, WEAKEST, View
from marginattack.report.numbers import choose_levels
from marginattack.report.pictures import summarize_features
from marginattack.report.samples import describe_samples
from marginattack.report.series import Series
from marginattack.report.summary import compare_classes, count_class_pairs, summarize_classes
from marginattack.report.trace_charts import phase_colours
from marginattack.storage.bounds import pending_bounds
from marginattack.storage.run_folder import RunFolder

CONFIDENCE_EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
MAX_PAIRS = 20
MAX_CHANGED = 8  # samples listed for each side


def describe_runs(stores: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return each run with its settings as dotted names and, by part, the number of missing shards."""
    return [
        {"store": store, "settings": _flatten(store.manifest.get("settings")),
         "preprocessing": _describe_preprocessing(store.manifest["model"].get("preprocessing")),
         "missing": store.count_missing(), "name": store.path.name or str(store.path),
         "pending_bounds": len(pending_bounds(store)) if store.manifest.get("bounds") else 0}
        for store in stores
    ]  # fmt: skip


def _describe_preprocessing(stored: Any) -> str:
    """Describe the preprocessing and its origin; empty if unknown."""
    steps = dict(_flatten(stored))
    source = steps.pop("from", "")
    if not steps:
        return "none" if source else ""
    return ", ".join(f"{name} {value}" for name, value in steps.items()) + (f" (from {source})" if source else "")


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
    """Return the data of one norm besides its charts."""
    rounded = view.axis.round_levels(4)
    levels = np.array(rounded)
    curves = zip(rounded, *(series.robust_accuracy(levels) for series in view.group), strict=True)
    return {
        "norm": view.norm, "symbol": view.axis.symbol, "names": view.series_names, "binned": view.binned,
        "charts": [plot.name for plot in plots_with_data(view)], "shown": view.strips, "classes": len(view.classes),
        "levels": list(curves), "certified": [series.certified_accuracy(levels) for series in view.group],
        "brackets": [(series.name, summarize_brackets(series)) for series in view.group if series.bounded],
        "bins": _tabulate_histogram(view), "confidence": _tabulate_confidence(view), "phased": view.phased,
        "phases": phase_colours(view),
        "traces": view.datasets["trace"].rows(), "details": [_describe_series(series, view) for series in view.group],
        "beyond": sum(int((s.columns["distance"][s.found] > view.axis.limit).sum()) for s in view.group),
        "comparison": _compare_view(view) if len(view.group) > 1 else None,
    }  # fmt: skip


def _compare_view(view: View) -> dict[str, Any]:
    """Compare the series of a norm: accuracies at a few ε, and each with the first, sample by sample."""
    first, *others = view.group
    pooled = np.concatenate([series.margins for series in view.group])
    few = [*view.axis.eps] or choose_levels(pooled, pixels=view.axis.pixels) or [view.axis.limit]
    eps = few[0] if view.axis.eps else few[len(few) // 2]
    pairs = []
    for other in others[: MAX_COMPARED - 1]:
        sides, result = find_changed_sides(first, other, eps), compare_series(first, other)
        listed = {way: [_describe_change(first, other, row) for row in rows[:MAX_CHANGED]]
                  for way, rows in sides.items()}  # fmt: skip
        counts = {way: len(rows) for way, rows in sides.items()}
        pairs.append({"name": other.name, "result": result, "sides": counts, "listed": listed})
    return {"first": first.name, "eps": eps, "levels": few, "pairs": pairs,
            "left_out": [other.name for other in others[MAX_COMPARED - 1 :]],
            "rows": [(series, series.robust_accuracy(np.array(few))) for series in view.group]}  # fmt: skip


def _describe_change(first: Series, other: Series, row: int) -> dict[str, Any]:
    """Name, label and both margins of a row of the other series."""
    column = other.columns
    same = (first.columns["input"] == column["input"][row]) & (first.columns["target"] == column["target"][row])
    return {"name": other.sample_name(row), "label": other.classes[int(column["label"][row])],
            "a": float(first.columns["distance"][same][-1]), "b": float(column["distance"][row])}  # fmt: skip


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


def _describe_series(series: Series, view: View) -> dict[str, Any]:
    """Return the classes, pairs of classes, samples, features and progress of a series."""
    names, classes = series.classes, summarize_classes(series)
    pairs = sorted(count_class_pairs(series), key=lambda pair: (-pair[2], pair[3]))
    pairs = [pair for pair in pairs if pair[2] > 1 or pairs[0][2] == 1][:MAX_PAIRS]
    mine = [[row for row in view.datasets[name].rows() if row["series"] == series.name] for name in ("spans", "trace")]
    weakest = sorted(classes, key=lambda row: row.median)[:WEAKEST]
    return {
        "name": series.name, "classes": classes, "kind": series.input_kind, "groups": describe_samples(series),
        "weakest": classes if len(view.classes) <= MAX_CLASSES else weakest, "fairness": compare_classes(classes),
        "pairs": [(names[start], names[end], n, median) for start, end, n, median in pairs],
        "features": summarize_features(series), "phases": summarize_phases(mine[0]),
        "anytime": tabulate_anytime(mine[1]), "budget": judge_budget(series), "later": extrapolate(mine[1]),
    }  # fmt: skip


def name_samples(series: Sequence[Series], ids: Sequence[int]) -> dict[int, str]:
    """Return the name of each traced sample."""
    names: dict[int, str] = {}
    for each in series:
        rows = np.flatnonzero(np.isin(each.columns["id"], list(ids)))
        names |= {int(each.columns["id"][row]): each.sample_name(row) for row in rows.tolist()}
    return {number: names.get(number, str(number)) for number in ids}
