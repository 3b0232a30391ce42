"""A run as JSON and as tables for the terminal."""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from marginattack.analysis import statistics
from marginattack.errors import InputError
from marginattack.report.brackets import HOW_TO_READ, summarize_brackets
from marginattack.report.numbers import choose_levels, format_distance, format_number
from marginattack.report.series import Series, load_series
from marginattack.report.summary import list_smallest
from marginattack.runs.levels import Level
from marginattack.storage.bounds import pending_bounds
from marginattack.storage.run_folder import Part, RunFolder

SMALLEST = 5  # margins listed
DEFAULT_EPS = {
    "linf": (2 / 255, 4 / 255, 8 / 255, 0.1, 0.3),
    "l2": (0.25, 0.5, 1.0, 2.0),
    "l1": (5.0, 12.0, 20.0),
    "l0": (1.0, 5.0, 20.0),
}


def default_levels(group: Sequence[Series]) -> tuple[float, ...]:
    """The usual ε of a norm if they are informative for these margins, else ε chosen from the margins."""
    usual = DEFAULT_EPS.get(group[0].norm, ())
    margins = np.concatenate([series.margins for series in group])
    within = [float((margins <= level).mean()) for level in usual] if len(margins) else []
    if not within or sum(0.02 < share < 0.98 for share in within) >= 2:
        return usual
    pixels = group[0].norm == "linf" and all(series.eight_bit for series in group)
    chosen = choose_levels(margins, pixels=pixels)
    return tuple(Level(level, format_distance(level, pixels=pixels)) for level in chosen) or usual


def summarize_series(series: Series, eps: Sequence[float | int] = (), unit: float | int = 1) -> dict[str, Any]:
    """Summarize one attack under one norm; ``eps`` and all distances (but ℓ0) are in ``unit``, 1 or 255."""
    scale = 1.0 if series.norm == "l0" else unit
    column, mask, margins = series.columns, series.measured, series.margins * scale
    found = margins[np.isfinite(margins)]
    radius = None if series.radius is None else series.radius * scale
    levels = tuple(eps) or tuple(level * scale if scale != 1 else level for level in default_levels([series]))
    if radius is not None and not eps:  # beyond it, nothing was tried
        levels = (*(level for level in levels if level < radius), radius)
    robust = series.robust_accuracy(np.array(levels, float) / scale)
    at_8_bits = column["distance_255"][mask] * scale if "distance_255" in column else np.array([])
    certified = series.certified_accuracy(np.array(levels, float) / scale)
    return {
        "attack": series.part.attack, "norm": series.norm, "samples": series.seen, "rows": len(mask),
        **({} if radius is None else {"radius": radius}),
        "targeted": series.targeted, "accuracy": series.correct / max(series.seen, 1),
        "accuracy_interval": series.accuracy_interval, "measured": len(margins),
        "success": len(found) / max(len(margins), 1), "rejected": int(column["rejected"].sum()),
        "median": float(np.median(margins)) if len(margins) else None,
        "median_interval": statistics.median_interval(margins),
        "mean_found": float(found.mean()) if len(found) else None,
        "robust": [
            {"eps": level, "accuracy": row.accuracy, "interval": (row.low, row.high),
             **({} if share is None else {"certified": share})}
            for level, row, share in zip(levels, robust, certified, strict=True)
        ],
        **({"bounds": summarize_brackets(series, scale)} if series.bounded else {}),
        "forwards": float(column["forwards"][mask].mean()) if len(margins) else 0.0,
        "backwards": float(column["backwards"][mask].mean()) if len(margins) else 0.0,
        **({"median_at_8_bits": float(np.median(at_8_bits))} if len(at_8_bits) else {}),
        "smallest": [{**row, "distance": float(row["distance"]) * scale} for row in list_smallest(series, SMALLEST)],
    }  # fmt: skip


def summarize_run(store: RunFolder, eps: Sequence[float | int] = (), unit: float | int = 1) -> dict[str, Any]:
    """Summarize a run as ``report --json`` prints it: what was measured, the results of each part, and the findings."""
    return {
        "run": str(store.path), "model": store.manifest["model"]["name"], "data": store.manifest["data"]["name"],
        "finished": store.manifest.get("finished"), "verified": store.manifest.get("verified"), "unit": unit,
        "randomized": store.manifest.get("randomized"),
        "parts": [summarize_series(series, eps, unit) for series in load_series(store)],
        "findings": store.findings,
    }  # fmt: skip


def format_run(
    store: RunFolder, eps: Sequence[float | int] = (), unit: float | int = 1, *, findings: bool = True
) -> list[Any]:
    """Format a run for the terminal: rich tables and lines of text, with the findings at the end."""
    from rich.table import Table

    run = summarize_run(store, eps, unit)
    if not run["parts"]:
        raise InputError(f"{store.path} has no finished shard yet: run the same `measure` command again to resume")
    table = Table("attack", "norm", "samples", "accuracy", "found", "median margin", "robust accuracy at ε", "passes")
    for part in run["parts"]:
        low, high = part["median_interval"]
        table.add_row(
            part["attack"], part["norm"], f"{part['samples']:,}", f"{part['accuracy']:.1%}", f"{part['success']:.1%}",
            f"{format_number(part['median'])}\n[{format_number(low)}, {format_number(high)}]",
            "\n".join(map(_format_level, part["robust"])),
            f"{part['forwards']:.0f} + {part['backwards']:.0f}",
        )  # fmt: skip
    listed = [f"{each['grade']}: {each['code']}: {each['seen']}" for each in run["findings"]] if findings else []
    smallest = _tabulate_smallest(store, run)
    return [
        f"{run['model']} on {run['data']}",
        table,
        *_format_brackets(run),
        *smallest,
        *_write_remarks(store, run),
        *listed,
    ]


def _format_level(level: dict[str, Any]) -> str:
    """Format the robust accuracy at one ε; with bounds, from the certified accuracy to that under attack."""
    certified = f"{level['certified']:6.1%} to " if "certified" in level else ""
    eps = format_distance(level["eps"])
    return f"{eps}: {certified}" + "{accuracy:6.1%} [{interval[0]:.1%}, {interval[1]:.1%}]".format(**level)


def _format_brackets(run: dict[str, Any]) -> list[Any]:
    """The bounds of a run: a table of how many brackets are closed, and the widest ones."""
    from rich.table import Table

    bounded = [(part, part["bounds"]) for part in run["parts"] if "bounds" in part]
    if not bounded:
        return []
    table = Table(
        "attack", "norm", "bounds by", "closed to 1 %", "10 %", "50 %", "median lower / upper", "KKT", "spread"
    )
    lines = ["Robust accuracy: from the certified accuracy to the accuracy under attack.", table]
    for part, b in bounded:
        both = f"{format_number(b['median_lower'])} / {format_number(b['median_upper'])}"
        table.add_row(
            part["attack"], part["norm"], b["method"], f"{b['closed']['0.01']} of {b['measured']}",
            str(b["closed"]["0.1"]), str(b["closed"]["0.5"]), f"{both} ({format_number(b['median_ratio'])})",
            format_number(b["median_kkt"]), format_number(b["median_spread"]),
        )  # fmt: skip
        if b["method"] == "clever":
            wrong = f"{b['estimates_refuted']} are wrong, as they exceed the margin"
            lines.append(
                f"{part['norm']}: CLEVER estimates, not bounds: median {format_number(b['median_estimate'])}; {wrong}."
            )
        if b["widest"] and b["method"] not in ("clever", "kkt"):
            named = ", ".join(
                f"{s.get('name', s['id'])} ({format_number(s['lower'], 3)} to {format_number(s['upper'], 3)})"
                for s in b["widest"][:5]
            )
            lines.append(f"{part['norm']}: widest brackets: samples {named}.")
    return [*lines, HOW_TO_READ]


def _tabulate_smallest(store: RunFolder, run: dict[str, Any]) -> list[Any]:
    """Tabulate the smallest margins, if samples or classes have names."""
    from rich.table import Table

    data, model = store.manifest["data"], store.manifest["model"]
    if not (data.get("names") or data.get("classes") or model.get("classes")):
        return []
    table = Table("attack", "norm", "smallest margins", "margin", "class", "adversarial class")
    for part in run["parts"]:
        for row in part["smallest"]:
            cells = str(row.get("name", row["id"])), format_number(row["distance"]), row["label"]
            table.add_row(part["attack"], part["norm"], *cells, row["adversarial_label"])
    return [table]


def _write_remarks(store: RunFolder, run: dict[str, Any]) -> list[str]:
    """Write the remarks below the table."""
    unit = " Distances are in units of 1/255." if run["unit"] != 1 else ""
    lines = [f"95 % confidence intervals; margins cover correctly classified samples.{unit}"]
    if run["randomized"]:
        lines.append(f"Randomised model: {run['randomized']}.")
    if any(part["targeted"] for part in run["parts"]):
        lines.append("Targeted: margins cover all samples; robust accuracy is the share that stays off its target.")
    if store.manifest.get("bounds") and (pending := pending_bounds(store)):
        lines.append(_describe_missing_bounds(store, pending))
    for part in run["parts"]:
        if "radius" in part:
            tried = f"{part['attack']} {part['norm']}: within {format_number(part['radius'])}"
            lines.append(f"{tried}: distances are of points in that radius, not margins; nothing is known beyond it.")
    if missing := store.count_missing().total():
        lines.append(f"Partial: {missing} shards are missing. Run the same `measure` command again to resume.")
    elif verified := run["verified"]:
        lines.append(f"Verified {verified['rows']:,} stored rows; {verified['failed']} failed.")
    for part in run["parts"]:
        if "median_at_8_bits" in part:
            lines.append(f"{part['norm']} at 8 bits: median {format_number(part['median_at_8_bits'])}.")
    return lines


def _describe_missing_bounds(store: RunFolder, pending: list[tuple[int, Part]]) -> str:
    """How many margins have no bounds, and the command that computes them."""
    missing, total = (sum(len(store.shards[shard]) for shard, _ in each) for each in (pending, store.finished()))
    flags = " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in store.manifest["bounds"]["settings"].items() if value
    )
    resume = f"marginattack bound {shlex.quote(str(store.path))} {flags}"
    return f"Bounds are missing for {missing:,} of {total:,} margins and count as 0. Resume: {resume}"
