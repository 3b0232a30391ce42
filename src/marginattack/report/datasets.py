"""What the charts draw: named datasets, as columns, rounded, and small whatever the run's size.

Columns of class and series names hold numbers; ``names`` says which list they point into. The page and the figures
turn them into rows in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginattack.analysis import statistics as stats
from marginattack.report.summary import Series, class_rows, grid, reach, step

MOST_ROWS = 20_000  # of a page; beyond this, samples are put into cells
MOST_CLASSES = 30  # of a chart; the tables hold all
MOST_LOOKS = 400  # of a sample's trace
FIRMEST = 1e-10  # the least that confidence is drawn short of 1

Columns = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Columns of one length, and which of them hold numbers of names."""

    columns: Columns
    names: dict[str, list[str]]

    def rows(self) -> list[dict[str, Any]]:
        """One record a row, with the names in place of their numbers."""
        told = {
            name: [self.names[name][i] for i in values] if name in self.names else values
            for name, values in self.columns.items()
        }
        return [dict(zip(told, values, strict=True)) for values in zip(*told.values(), strict=True)]


@dataclass(frozen=True, kw_only=True)
class View:
    """All that is drawn of one norm: its series, its datasets, and what the axes need to know."""

    norm: str
    group: Sequence[Series]
    classes: list[str]  # of every series
    shown: list[str]  # those that have room in a chart
    step: float  # width of the histogram's bins
    top: float  # where the axis of margins ends
    lowest: float  # where a logarithmic one begins
    binned: bool
    moves: list[str]
    datasets: dict[str, Dataset]

    def named(self, name: str) -> str:
        """The name of a dataset in the page."""
        return f"{name}_{self.norm}"


def view(norm: str, group: Sequence[Series], binned: bool) -> View:
    """The datasets of a norm."""
    found = np.concatenate([series.columns["distance"][series.found] for series in group])
    top = reach(found) if len(found) else 1.0
    width = step(top)
    classes = max((series.classes for series in group), key=len)
    if any(series.classes != classes[: len(series.classes)] for series in group):
        classes = [str(number) for number in range(len(classes))]  # the runs name their classes differently
    names = {"series": [series.name for series in group], "from": classes, "to": classes}
    shown = _shown(group, len(classes))
    traces, moves = _traces(group)
    datasets = {
        "curve": Dataset(columns=_joined([_curve(s, grid(group)) for s in group]), names=names),
        "rows": Dataset(columns=_joined([_rows(s, width if binned else None) for s in group]), names=names),
        "strips": Dataset(columns=_joined([_strips(s, width, top, shown) for s in group]), names=names),
        "pairs": Dataset(columns=_joined([_pairs(s, shown) for s in group]), names=names),
        "trace": Dataset(columns=traces, names={**names, "move": moves}),
    }
    return View(
        norm=norm, group=group, classes=classes, shown=[classes[i] for i in shown], step=width, top=float(f"{top:.4g}"),
        lowest=float(f"{found.min():.2g}") if len(found) else 0.1, binned=binned, moves=moves, datasets=datasets,
    )  # fmt: skip


def _shown(group: Sequence[Series], classes: int) -> list[int]:
    """The classes that charts have room for: all, or those with the smallest medians in the first series."""
    if classes <= MOST_CLASSES:
        return list(range(classes))
    rows = sorted(class_rows(group[0]), key=lambda row: row.median)
    return sorted(row.number for row in rows[:MOST_CLASSES])


def _joined(parts: Sequence[Columns]) -> Columns:
    """The columns of all series, with the number of each row's series."""
    whole: Columns = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    lengths = [len(next(iter(part.values()))) for part in parts]
    whole["series"] = np.repeat(np.arange(len(parts)), lengths).tolist()
    return whole


def rounded(values: np.ndarray, digits: int = 5) -> list[float]:
    """To so many significant digits: what a page needs, in as few characters."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def bins(values: np.ndarray, width: float) -> np.ndarray:
    """The number of each value's bin, rounded as in the page; a value on an edge belongs to the bin below."""
    return np.maximum(np.ceil(np.array(rounded(values)) / width - 1e-9).astype(np.int64) - 1, 0)


def _curve(series: Series, levels: np.ndarray) -> Columns:
    """Robust accuracy at each ε, in %, with Wilson's band."""
    hits = series.holding(levels)
    bands = {int(k): stats.share(int(k), series.total) for k in np.unique(hits)}
    low, high = np.array([bands[int(k)] for k in hits]).T
    return {
        "eps": levels.tolist(), "hits": hits.tolist(), "robust": rounded(100 * hits / max(series.total, 1), 4),
        "low": rounded(100 * low, 4), "high": rounded(100 * high, 4),
    }  # fmt: skip


def _rows(series: Series, width: float | None) -> Columns:
    """One row a sample with a margin; or, with a width of bins, one row a cell, and in n how many are there.

    ``u`` is how far confidence falls short of 1, for an axis that shows 99.9 % and 99.99 % apart.
    """
    kept = series.found
    d, u = (
        np.array(rounded(series.columns["distance"][kept])),
        np.clip(1 - series.columns["confidence"][kept], FIRMEST, 1),
    )
    label, to, ids = (series.columns[name][kept] for name in ("label", "adversarial_label", "id"))
    if width is None:
        return {"d": d.tolist(), "u": rounded(u, 3), "from": label.tolist(), "to": to.tolist(),
                "id": ids.tolist(), "n": [1] * len(d)}  # fmt: skip
    fine = width / 2
    keys = np.stack([label, to, bins(d, fine), np.ceil(3 * np.log10(u))]).astype(np.int64)
    (label, to, cell, firm), count = np.unique(keys, axis=1, return_counts=True)
    return {"d": rounded((cell + 0.5) * fine), "u": rounded(10 ** ((firm - 0.5) / 3), 3), "from": label.tolist(),
            "to": to.tolist(), "id": [-1] * len(cell), "n": count.tolist()}  # fmt: skip


def _strips(series: Series, width: float, top: float, shown: list[int]) -> Columns:
    """One row a class and bin that is not empty; quartiles stand in each row of their class."""
    label, distance = series.columns["label"], series.columns["distance"]
    out: Columns = {name: [] for name in ("from", "number", "bin", "n", "share", "of", "first", "q1", "q2", "q3")}
    for row in class_rows(series):
        if row.number not in shown:
            continue
        mine = distance[series.found & (label == row.number)]
        where, count = np.unique(bins(np.minimum(mine, top), width), return_counts=True)
        quartiles = [float(f"{min(q, top):.4g}") for q in (row.low, row.median, row.high)]
        for i, (place, n) in enumerate(zip(where.tolist(), count.tolist(), strict=True)):
            record = (row.number, row.number, place, n, float(f"{n / count.max():.2g}"), row.n, int(i == 0))
            for name, value in zip(out, (*record, *quartiles), strict=True):
                out[name].append(value)
    return out


def _pairs(series: Series, shown: list[int]) -> Columns:
    """One row a pair of classes that charts show: how many go from the one to the other, and their median margin."""
    label, to, d = (series.columns[name] for name in ("label", "adversarial_label", "distance"))
    kept = series.found & np.isin(label, shown) & np.isin(to, shown)
    (start, end), where = np.unique(np.stack([label[kept], to[kept]]), axis=1, return_inverse=True)
    margins = [d[kept][where == i] for i in range(len(start))]
    names = series.classes
    told = [f"{series.name} {names[a]} {names[b]}" for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    return {"pair": told, "all": [len(each) for each in margins],
            "median": rounded(np.array([np.median(each) for each in margins]), 4)}  # fmt: skip


def _traces(group: Sequence[Series]) -> tuple[Columns, list[str]]:
    """What was done to a few samples, look by look, thinned where an attack looks very often; and its moves' names."""
    out: Columns = {name: [] for name in ("id", "look", "passes", "distance", "c", "best", "move", "series")}
    moves: list[str] = []
    for number, series in enumerate(group):
        table = series.store.traces()
        if table is None:
            continue
        column = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
        mine = (column["attack"] == series.part.attack) & (column["norm"] == series.part.norm)
        if not mine.any():
            continue
        every = -(-int(column["query"][mine].max() + 1) // MOST_LOOKS)
        rows = np.flatnonzero(mine & (column["query"] % every == 0))
        names = [str(move) or "start" for move in column["move"][rows]]
        moves += [move for move in dict.fromkeys(names) if move not in moves]
        best = column["best"][rows]
        out["id"] += column["id"][rows].tolist()
        out["look"] += column["query"][rows].tolist()
        out["passes"] += column["passes"][rows].tolist()
        out["distance"] += rounded(column["distance"][rows], 4)
        out["c"] += rounded(column["c"][rows], 3)
        out["best"] += [float(f"{b:.4g}") if np.isfinite(b) else None for b in best.tolist()]
        out["move"] += [moves.index(move) for move in names]
        out["series"] += [number] * len(rows)
    return out, moves


def views(groups: dict[str, list[Series]]) -> list[View]:
    """One view a norm; with samples in cells where there are too many for a page."""
    rows = sum(int(series.found.sum()) for group in groups.values() for series in group)
    return [view(norm, group, rows > MOST_ROWS) for norm, group in groups.items()]
