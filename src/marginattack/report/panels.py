"""What the page says in words and tables, besides its charts: a record each for the template."""

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marginattack.analysis import statistics as stats
from marginattack.report import gallery
from marginattack.report.charts import PLOTS, drawn
from marginattack.report.datasets import View, bins
from marginattack.report.summary import SYMBOL, Series, class_rows, quantile, suspects
from marginattack.report.text import joined

GRADES = ("grave", "warning", "note")


def findings(every: Sequence[Series]) -> list[dict[str, Any]]:
    """Every finding of every run, the gravest first, with the run that it is about where there are several."""
    stores = {str(series.store.path): series.store for series in every}
    found = [
        {**finding, "run": path if len(stores) > 1 else ""}
        for path, store in stores.items()
        for finding in store.findings
    ]
    return sorted(found, key=lambda finding: GRADES.index(finding["grade"]) if finding["grade"] in GRADES else 9)


def numbers(series: Series) -> dict[str, Any]:
    """One row of the table of numbers."""
    margins = series.margins
    return {
        "name": series.name, "norm": series.part.norm, "seen": series.seen, "held": len(margins),
        "accuracy": series.accuracy, "accuracy_interval": series.accuracy_interval, "median": series.median,
        "interval": series.median_interval, "missed": series.missed, "passes": series.passes,
        "targeted": series.targeted,
        "tenth": quantile(margins, 0.1),
    }  # fmt: skip


def comparisons(view: View) -> list[dict[str, Any]]:
    """The first series of a norm against each other one, on the inputs that both have."""
    first, *others = view.group
    lines = []
    for other in others:
        pairs = joined(first.columns, other.columns)
        if pairs is not None and pairs.n > 1:
            lines.append({"norm": view.norm, "a": first.name, "b": other.name, "pairs": pairs})
    return lines


def panel(view: View) -> dict[str, Any]:
    """What the template says about one norm besides its charts."""
    levels = _levels(view)
    counted = [series.holding(levels) for series in view.group]
    told = [
        [(int(k) / max(s.total, 1), *stats.share(int(k), s.total)) for k in row]
        for s, row in zip(view.group, counted, strict=True)
    ]
    return {
        "norm": view.norm, "symbol": SYMBOL.get(view.norm, view.norm), "names": [s.name for s in view.group],
        "scaled": view.norm != "l0", "binned": view.binned, "levels": list(zip(levels.tolist(), *told, strict=True)),
        "charts": [plot.name for plot in PLOTS if drawn(view, plot)], "shown": view.shown, "classes": len(view.classes),
        "bins": _bins(view), "firm": _firm(view), "traced": _traced(view),
        "details": [_details(series) for series in view.group], "beyond": _beyond(view),
    }  # fmt: skip


def _levels(view: View) -> np.ndarray:
    """About a dozen round distances."""
    width = float(f"{view.step * 4:.3g}")
    return np.array([float(f"{k * width:.6g}") for k in range(int(view.top / width) + 2)])


def _bins(view: View) -> list[tuple[float, float, list[int]]]:
    """The histogram as numbers."""
    places = [bins(series.columns["distance"][series.found], view.step) for series in view.group]
    last = int(np.ceil(view.top / view.step))
    counts = np.array([np.bincount(each[each < last], minlength=last) for each in places]).T.tolist()
    return [(k * view.step, (k + 1) * view.step, each) for k, each in enumerate(counts) if any(each)]


def _beyond(view: View) -> int:
    return sum(int((series.columns["distance"][series.found] > view.top).sum()) for series in view.group)


def _firm(view: View) -> list[tuple[str, list[tuple[int, float]]]]:
    """The median margin by confidence."""
    edges, rows = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0), []
    for low, high in pairwise(edges):
        cells = []
        for series in view.group:
            sure = series.columns["confidence"]
            mine = series.columns["distance"][series.found & (sure > low) & (sure <= high)]
            cells.append((len(mine), float(np.median(mine)) if len(mine) else float("nan")))
        rows.append((f"{100 * low:g} to {100 * high:g} %", cells))
    return rows


def _traced(view: View) -> list[dict[str, Any]]:
    """The samples whose moves were kept: looks, passes, and what was known at the end."""
    columns = view.datasets["trace"].columns
    ends: dict[tuple[int, int], dict[str, Any]] = {}
    for series, sample, look, passes, best in zip(
        *(columns[c] for c in ("series", "id", "look", "passes", "best")), strict=True
    ):
        one = ends.setdefault((series, sample), {"series": view.group[series].name, "id": sample, "first": None})
        one |= {"look": look + 1, "passes": passes, "best": best}
        if one["first"] is None and best is not None:
            one["first"] = passes
    return list(ends.values())


def _details(series: Series) -> dict[str, Any]:
    """Classes, pairs of classes, the gallery and the samples to look at."""
    kinds, odd = gallery.kinds(series), suspects(series)
    rows = [row for members in kinds.values() for row in members]
    pictures = gallery.pictures(series, [*rows, *(suspect.row for suspect in odd)])
    listed = [_sample(series, each.row, pictures) | {"why": each.why} for each in odd]
    return {
        "name": series.name, "classes": class_rows(series), "pairs": _most_frequent(series),
        "gallery": {kind: [_sample(series, row, pictures) for row in members] for kind, members in kinds.items()},
        "pictured": bool(pictures), "suspects": listed, "csv": _csv(listed),
    }  # fmt: skip


def _sample(series: Series, row: int, pictures: Mapping[int, gallery.Picture]) -> dict[str, Any]:
    names = series.classes
    value = {name: column[row] for name, column in series.columns.items()}
    right = value["label"] == value["prediction"]
    return {
        "id": int(value["id"]), "input": str(value["input"]), "label": names[int(value["label"])],
        "prediction": names[int(value["prediction"])], "right": bool(right), "confidence": float(value["confidence"]),
        "to": names[int(value["adversarial_label"] if right or series.targeted else value["prediction"])],
        "distance": float(value["distance"]), "passes": int(value["forwards"] + value["backwards"]),
        "at_8_bits": float(value["distance_255"]) if "distance_255" in value else None, "picture": pictures.get(row),
    }  # fmt: skip


def _most_frequent(series: Series, most: int = 20) -> list[tuple[str, str, int, float]]:
    """The pairs of classes that most samples go along, with their median margins."""
    names = series.classes
    label, to, d = (series.columns[name][series.found] for name in ("label", "adversarial_label", "distance"))
    pairs, where, counts = np.unique(np.stack([label, to]), axis=1, return_inverse=True, return_counts=True)
    top = np.argsort(-counts, kind="stable")[:most]
    return [(names[pairs[0, i]], names[pairs[1, i]], int(counts[i]), float(np.median(d[where == i]))) for i in top]


def _csv(listed: Sequence[Mapping[str, Any]]) -> str:
    """The samples to look at, for a spreadsheet."""
    out = io.StringIO()
    names = ("id", "input", "label", "to", "distance", "confidence", "why")
    writer = csv.writer(out)
    writer.writerow(names)
    writer.writerows([each[name] for name in names] for each in listed)
    return out.getvalue()
