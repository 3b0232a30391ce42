"""A run as a table of text, and as JSON: accuracy, margins with their intervals, robust accuracy at given distances."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from marginattack.analysis import statistics as stats
from marginattack.errors import InputError
from marginattack.storage.run_folder import Part, RunFolder

LEVELS = {
    "linf": (2 / 255, 4 / 255, 8 / 255, 0.1, 0.3),
    "l2": (0.25, 0.5, 1.0, 2.0),
    "l1": (5.0, 12.0, 20.0),
    "l0": (1.0, 5.0, 20.0),
}


def summary(store: RunFolder, part: Part, eps: Sequence[float | int] = (), unit: float | int = 1) -> dict[str, Any]:
    """The numbers of one part; ``eps`` and every distance in the unit, which is 1 or 255 for pixels up to 1."""
    column = store.numeric_columns(part)
    scale = 1.0 if part.norm == "l0" else unit
    seen, right_seen = store.count_samples(part)
    targeted = bool((column["target"] >= 0).any())
    right = (column["label"] == column["prediction"]).numpy()
    distance = column["distance"].numpy()[right | targeted] * scale
    found = distance[np.isfinite(distance)]
    low, high = stats.median(distance)
    levels = tuple(eps) or tuple(level * scale for level in LEVELS[part.norm])
    robust = []
    for level in levels:
        held = int((distance > level).sum())
        n = len(distance) if targeted else seen
        robust.append({"eps": level, "accuracy": held / max(n, 1), "interval": stats.share(held, n)})
    return {
        "attack": part.attack, "norm": part.norm, "samples": seen, "rows": len(right), "targeted": targeted,
        "accuracy": right_seen / max(seen, 1), "accuracy_interval": stats.share(right_seen, seen),
        "measured": len(distance), "success": len(found) / max(len(distance), 1),
        "rejected": int(column["rejected"].sum()),
        "median": float(np.median(distance)) if len(distance) else None, "median_interval": (low, high),
        "mean_found": float(found.mean()) if len(found) else None, "robust": robust,
        "forwards": float(column["forwards"].numpy()[right | targeted].mean()) if len(distance) else 0.0,
        "backwards": float(column["backwards"].numpy()[right | targeted].mean()) if len(distance) else 0.0,
        **_at_8_bits(column, right | targeted, scale),
    }  # fmt: skip


def _at_8_bits(column: dict[str, Any], rows: np.ndarray, scale: float | int) -> dict[str, float]:
    if "distance_255" not in column or not rows.any():
        return {}
    return {"median_at_8_bits": float(np.median(column["distance_255"].numpy()[rows]) * scale)}


def as_json(store: RunFolder, eps: Sequence[float | int] = (), unit: float | int = 1) -> dict[str, Any]:
    """The whole run: each part's numbers, the findings, and what was measured."""
    return {
        "run": str(store.path), "model": store.manifest["model"]["name"], "data": store.manifest["data"]["name"],
        "finished": store.manifest.get("finished"), "verified": store.manifest.get("verified"), "unit": unit,
        "parts": [summary(store, part, eps, unit) for part in store.parts if store.count_samples(part)[0]],
        "findings": store.findings,
    }  # fmt: skip


def as_text(store: RunFolder, eps: Sequence[float | int] = (), unit: float | int = 1) -> list[Any]:
    """The same for people: rich tables and lines."""
    from rich.table import Table

    run = as_json(store, eps, unit)
    if not run["parts"]:
        raise InputError(f"{store.path} holds no finished shard yet: the same `measure` command goes on with it")
    table = Table("attack", "norm", "n", "accuracy", "found", "median margin", "still right at", "passes")
    for part in run["parts"]:
        low, high = part["median_interval"]
        table.add_row(
            part["attack"], part["norm"], f"{part['samples']:,}",
            f"{part['accuracy']:.1%}", f"{part['success']:.1%}",
            f"{_number(part['median'])}\n[{_number(low)}, {_number(high)}]",
            "\n".join(_robust_line(level) for level in part["robust"]),
            f"{part['forwards']:.0f} + {part['backwards']:.0f}",
        )  # fmt: skip
    lines: list[Any] = [f"{run['model']} on {run['data']}", table, *_remarks(store, run)]
    return lines


def _remarks(store: RunFolder, run: dict[str, Any]) -> list[str]:
    """What a reader must know besides the table."""
    unit = " Distances are in units of 1/255." if run["unit"] != 1 else ""
    lines = [f"Intervals hold 95 %. Margins are of samples that are classified rightly.{unit}"]
    if any(part["targeted"] for part in run["parts"]):
        lines.append("Targeted: margins are of every sample, to its target; still right: the target is not reached.")
    if store.pending():
        lines.append(f"Partial: {len(store.pending())} shards are missing; the same `measure` command goes on.")
    elif run["verified"]:
        lines.append(
            f"{run['verified']['rows']:,} stored rows read back and checked, {run['verified']['failed']} failed."
        )
    for part in run["parts"]:
        if "median_at_8_bits" in part:
            lines.append(f"{part['norm']} at 8 bits: median {_number(part['median_at_8_bits'])}.")
    return lines + [f"{finding['grade']}: {finding['code']}: {finding['seen']}" for finding in store.findings]


def _robust_line(level: dict[str, Any]) -> str:
    low, high = level["interval"]
    return f"{level['eps']:.4g}: {level['accuracy']:6.1%} [{low:.1%}, {high:.1%}]"


def _number(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.4g}"


def dumped(tree: Any) -> str:
    """JSON that every reader takes: what is not a number, or not finite, is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return None if isinstance(value, float) and not np.isfinite(value) else value

    return json.dumps(plain(tree), indent=1, allow_nan=False)


def compared(stores: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Every part that the first run shares with another, joined by the inputs' fingerprints."""
    first, rows = stores[0], []
    for other in stores[1:]:
        lone = len(other.parts) == len({each.norm for each in other.parts})
        for part in first.parts:
            for against in other.parts:
                if part.norm == against.norm and (part.attack == against.attack or lone):
                    rows.append((other, part, against))
    found = [row for other, part, against in rows if (row := _compared(first, part, other, against))]
    if not found:
        shared = "no norm and attack" if not rows else "no input that both classify rightly and attack alike"
        raise InputError(f"{first.path} shares {shared} with the other runs: nothing can be compared")
    return found


def _compared(a: RunFolder, part: Part, b: RunFolder, against: Part) -> dict[str, Any] | None:
    pairs = joined(_columns(a, part), _columns(b, against))
    if pairs is None:
        return None
    return {"a": str(a.path), "b": str(b.path), "norm": part.norm, "attack_a": part.attack, "attack_b": against.attack,
            **asdict(pairs)}  # fmt: skip


def _columns(store: RunFolder, part: Part) -> dict[str, list[Any]]:
    if not store.count_samples(part)[0]:
        return {"input": []}
    found: dict[str, list[Any]] = store.table(["input", "target", "label", "prediction", "distance"], part).to_pydict()
    return found


def joined(a: Mapping[str, Any], b: Mapping[str, Any]) -> stats.Pairs | None:
    """Two results joined by input and target, where both models classify it rightly (or the attack is targeted)."""
    left, right = _margins(a), _margins(b)
    shared = [key for key in left if key in right]
    if not shared:
        return None
    return stats.paired(np.array([left[key] for key in shared]), np.array([right[key] for key in shared]))


def _margins(columns: Mapping[str, Any]) -> dict[tuple[str, int], float]:
    """The distance of each input that has a margin; one that is there twice counts once."""
    if not len(columns["input"]):
        return {}
    names = ("input", "target", "label", "prediction", "distance")
    rows = zip(*(columns[name] for name in names), strict=True)
    return {(key, int(goal)): float(size) for key, goal, label, guess, size in rows if goal >= 0 or label == guess}
