"""Convergence of an attack: traced queries, phases, and the expected effect of more passes."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from marginattack.analysis.statistics import median_or_nan
from marginattack.report.axes import round_digits
from marginattack.report.series import Series

MAX_QUERIES = 400  # per traced sample
NAMES = ("id", "query", "passes", "distance", "c", "move", "best")
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of the passes at which the anytime curve is tabulated
MIN_TRACED = 3  # samples for an extrapolation
MOVES = ("start", "restoration", "projection", "closing")  # of MarginAttack, which alternate from query to query
PHASES = {
    "profile": "two gradients decide which schedule fits: near-linear, curved or masked",
    "scan": "ranks the other classes by the distance to their tangent planes",
    "scout": "a descent in ℓ∞, then a slide along the boundary from what it found",
    "descend": "a descent from the input towards any other class",
    "target": "runs from the input towards each of the nearest classes",
    "restart": "runs from other starting points, for other local minima",
    "polish": "refines the nearest point found so far",
    "closing": "projects the input onto the tangent plane at the nearest point",
    # rarer ones last, because colours repeat after eight
    "propose": "random proposals around the incumbent, where gradients mislead",
    "corners": "moves single pixels to their limits",
    "smooth": "descends a smoothed count of pixels",
    "prune": "gives back pixels that are not needed",
}


def trace_columns(series: Series) -> dict[str, list[Any]]:
    """One row per query of each traced sample, thinned to ``MAX_QUERIES``."""
    table = series.store.traces()
    if table is None:
        return {name: [] for name in NAMES}
    column = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    mask = (column["attack"] == series.part.attack) & (column["norm"] == series.norm)
    every = -(-int(column["query"][mask].max(initial=0) + 1) // MAX_QUERIES)
    last = np.append(column["id"][1:] != column["id"][:-1], True)
    column = {name: values[mask & ((column["query"] % every == 0) | last)] for name, values in column.items()}
    return {
        "id": column["id"].tolist(), "query": column["query"].tolist(), "passes": column["passes"].tolist(),
        "distance": round_digits(column["distance"], 4), "c": round_digits(column["c"], 3),
        "move": [str(move) or "start" for move in column["move"]],
        "best": [best if np.isfinite(best) else None for best in round_digits(column["best"], 4)],
    }  # fmt: skip


def find_spans(trace: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """One row per phase of each traced sample: its first and last query and pass, and the incumbent before and after.

    Empty if the attack names no phases, or only moves that alternate.
    """
    names = ("series", "id", "phase", "q1", "q2", "p1", "p2", "before", "after", "first", "wide")
    if set(trace["move"]) <= {*MOVES}:
        return {name: [] for name in names}
    records: list[tuple[Any, ...]] = []
    queries = zip(*(trace[name] for name in ("series", "id", "query", "passes", "move", "best")), strict=True)
    ordered = sorted(queries, key=lambda row: row[:3])
    for (number, sample), rows in groupby(ordered, key=lambda row: row[:2]):
        members, best, end = list(rows), None, 0
        for phase, group in groupby(members, key=lambda row: row[4]):
            some = list(group)
            share = (some[-1][3] - end) / max(members[-1][3], 1)
            known = [row[5] for row in some if row[5] is not None]
            before = known[0] if best is None and known else best
            records.append((number, sample, phase, some[0][2], some[-1][2] + 1, end, some[-1][3], before, some[-1][5],
                            int(best is None and bool(known)), int(share > 0.06)))  # fmt: skip
            best, end = some[-1][5], some[-1][3]
    return {name: [record[i] for record in records] for i, name in enumerate(names)}


def summarize_phases(spans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per phase, in order: samples, passes, and by how much it lowered the incumbent, over all its spans."""
    rows = []
    for phase in dict.fromkeys(span["phase"] for span in spans):
        mine = [span for span in spans if span["phase"] == phase]
        samples = {span["id"] for span in mine}
        falls = dict.fromkeys(samples, 1.0)
        for span in mine:
            if span["before"]:
                falls[span["id"]] *= span["after"] / span["before"]
        passes = sum(span["p2"] - span["p1"] for span in mine) / len(samples)
        rows.append({"phase": phase, "about": PHASES.get(phase, ""), "samples": len(samples), "passes": passes,
                     "first": sum(span["first"] for span in mine), "fall": 1 - float(np.median(list(falls.values()))),
                     "improved": sum(fall < 0.999 for fall in falls.values())})  # fmt: skip
    return rows


def tabulate_anytime(trace: Sequence[dict[str, Any]]) -> list[tuple[float, int, int, float]]:
    """At shares of the passes: traced samples with an adversarial example, of how many, and their median excess."""
    ended = [rows for rows in _by_sample(trace) if rows[-1]["best"]]
    table = []
    for share in SHARES:
        known = [best / rows[-1]["best"] - 1 for rows in ended if (best := _best_within(rows, share))]
        table.append((share, len(known), len(ended), median_or_nan(np.array(known))))
    return table


def _by_sample(trace: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows of each traced sample, in the order of its queries."""
    ordered = sorted(trace, key=lambda row: (row["id"], row["query"]))
    return [list(rows) for _, rows in groupby(ordered, key=lambda row: row["id"])]


def _best_within(rows: Sequence[dict[str, Any]], share: float) -> float | None:
    """The smallest distance found within a share of a sample's passes; None if nothing was found."""
    best: list[float | None] = [row["best"] for row in rows if row["passes"] <= share * rows[-1]["passes"]]
    return best[-1] if best else None


def extrapolate(trace: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """Extrapolate the anytime curve of the traced samples to twice the passes.

    Returns by how much their distances fell from a quarter of the passes to half, from half to the end, and would fall
    until twice the passes if falls keep shrinking by the same factor; None with fewer than ``MIN_TRACED`` samples.
    """
    known = [[_best_within(rows, share) for share in (0.25, 0.5, 1.0)] for rows in _by_sample(trace)]
    logs = [np.log(np.array(bests, float)) for bests in known if all(bests)]
    if len(logs) < MIN_TRACED:
        return None
    first, second = np.clip(-np.diff(np.mean(logs, 0)), 0, None).tolist()  # in logarithms
    later = second * min(second / first, 1.0) if first > 0 else second
    return {"first": 1 - float(np.exp(-first)), "second": 1 - float(np.exp(-second)),
            "next": 1 - float(np.exp(-later)), "n": float(len(logs))}  # fmt: skip


def judge_budget(series: Series) -> dict[str, float] | None:
    """Return how margins fell in the last tenth of the passes: at the median, at the 90th percentile, and how often."""
    if "distance_at_90pct" not in series.columns or not series.found.any():
        return None
    before, after = (series.columns[name][series.found] for name in ("distance_at_90pct", "distance"))
    fall = np.where(np.isfinite(before), 1 - after / np.where(before > 0, before, 1), 1.0)
    fall = np.clip(fall, 0, 1)  # bounds may have found a nearer point since
    return {"median": float(np.median(fall)), "ninth": float(np.quantile(fall, 0.9)),
            "share": float((fall > 0.01).mean()), "n": float(len(fall))}  # fmt: skip
