"""The samples that the page lists: the most fragile, unusual and misclassified ones, and some for comparison."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marginattack.report.pictures import load_pictures
from marginattack.report.series import Series
from marginattack.report.summary import find_misclassified, find_unusual
from marginattack.report.tables import to_csv

FRAGILE, OTHERS = 20, 6
HEADER = ("id", "name", "input", "label", "to", "distance", "confidence", "why")


def describe_samples(series: Series) -> list[dict[str, Any]]:
    """Return the groups of samples, each with its title, a file name, its samples and all of them as CSV."""
    groups = _select(series)
    rows = [row for _, _, members in groups for row, _ in members]
    pictures = load_pictures(series, rows)
    described = []
    for title, file, members in groups:
        listed = [_describe(series, row, pictures) | {"why": why} for row, why in members]
        csv = to_csv(HEADER, [[sample[name] for name in HEADER] for sample in listed])
        described.append({"title": title, "file": file, "samples": listed, "csv": csv})
    return described


def _select(series: Series) -> list[tuple[str, str, list[tuple[int, str]]]]:
    """Return title, file name, rows and reasons of the groups that have a sample."""
    rows = np.flatnonzero(series.found)
    rows = rows[np.argsort(series.columns["distance"][rows], kind="stable")]
    middle = max((len(rows) - OTHERS) // 2, 0)
    plain = {"Most fragile": rows[:FRAGILE]}
    if len(rows) > FRAGILE + 2 * OTHERS:
        plain |= {"Around the median": rows[middle : middle + OTHERS], "Most robust": rows[-OTHERS:][::-1]}
    groups = [(title, [(row, "") for row in members.tolist()]) for title, members in plain.items()]
    groups[1:1] = [("Unusual for their class", find_unusual(series)), ("Misclassified", find_misclassified(series))]
    return [(title, title.lower().replace(" ", "-"), members) for title, members in groups if members]


def _describe(series: Series, row: int, pictures: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    names = series.classes
    value = {name: column[row] for name, column in series.columns.items()}
    measured, data = bool(series.measured[row]), series.store.manifest["data"]
    name = str(value.get("name", ""))
    source = Path(data["name"])
    path = str(source / name) if name and source.is_dir() else name
    return {
        "id": int(value["id"]), "name": name, "shown": series.sample_name(row), "path": path,
        "input": str(value["input"]), "label": names[int(value["label"])],
        "prediction": names[int(value["prediction"])], "confidence": float(value["confidence"]),
        "to": names[int(value["adversarial_label"] if measured else value["prediction"])],
        "distance": float(value["distance"]), "passes": int(value["forwards"] + value["backwards"]),
        "at_8_bits": float(value["distance_255"]) if "distance_255" in value else None,
        "lower": float(value["lower"]) if "lower" in value else None, "picture": pictures.get(row),
        "key": f"{series.norm} {series.name} {row}",
    }  # fmt: skip
