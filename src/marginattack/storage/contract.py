"""Checks of a stored shard: its columns, samples and order, the run and part it belongs to, and the range of values."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from marginattack.storage.manifest import DIGESTS_SINCE, Part, Shards, read_order
from marginattack.storage.parquet import digest_json, read_metadata

# the columns of a margins file and their types; distance_255 exists with --lattice 255, name if samples have names
COLUMNS = {
    "id": "int64",  # the row in the data source
    "name": "string",  # its file name, relative to the data source
    "input": "string",  # fingerprint of the pixels
    "attack": "string",
    "norm": "string",
    "label": "int64",
    "prediction": "int64",
    "confidence": "float64",  # softmax of the prediction
    "target": "int64",  # -1: untargeted
    "adversarial_label": "int64",
    "distance": "float64",  # infinity: nothing found; 0: the input is misclassified
    "success": "bool",
    "rejected": "bool",  # found, but not adversarial when it was verified
    "forwards": "int64",
    "backwards": "int64",
    "distance_at_90pct": "float64",  # the best distance when about 90 % of the passes were spent
    "distance_255": "float64",  # of the image that is adversarial at 8 bits
}

# the columns of a bounds file, one row per row of the margins; it also holds points nearer than those of the margins
BOUNDS = {
    "id": "int64",
    "lower": "float64",  # certified: no adversarial point is nearer; 0: nothing is certified
    "certified_by": "string",
    "upper": "float64",  # the distance of the nearest known adversarial point
    "adversarial_label": "int64",  # its class
    "kkt": "float64",  # the residual of the KKT conditions; NaN: unknown
    "spread": "float64",  # share by which margins of other seeds exceed the least; NaN: unknown
    "estimate": "float64",  # of CLEVER, not a bound; NaN: unknown
}

TRACES = {
    "attack": "string", "norm": "string", "id": "int64", "query": "int64", "passes": "int64", "distance": "float64",
    "c": "float64", "move": "string", "best": "float64",
}  # fmt: skip
PIXELS = ("halffloat", "float", "double", "uint8")
MAX_CLASS = 2**20  # larger numbers are damage; readers allocate by class


def stamp(manifest: Mapping[str, Any], part: Part, shard: int) -> dict[str, Any]:
    """The metadata that tie a file to its run, part and shard."""
    return {"format": manifest["format"], "run": digest_json(manifest["identity"]), "part": part.name, "shard": shard}


def find_misplaced(about: Mapping[str, Any], stamped: Mapping[str, Any]) -> str | None:
    """Why the file with this metadata does not belong where it is; None if it does."""
    if stamped["format"] < DIGESTS_SINCE:
        stamped = {name: stamped[name] for name in ("format", "shard")}
    elif "digest" not in about:
        return "has no digest"
    if about.get("run") != stamped.get("run"):
        return "belongs to another run"
    for name, value in stamped.items():
        if type(about.get(name)) is not type(value) or about[name] != value:
            return f"says that it is {name} {about.get(name)!r}, not {value!r}"
    return None


def find_broken(manifest: Mapping[str, Any], part: Part, shard: int, table: Any) -> str | None:
    """What is wrong with the margins of a shard; None if nothing is."""
    absent = {"distance_255": not manifest["identity"]["lattice"], "name": not manifest["data"].get("names")}
    columns = {name: kind for name, kind in COLUMNS.items() if not absent.get(name)}
    if problem := find_wrong_column(table, columns):
        return problem
    for name, value in (("attack", part.attack), ("norm", part.norm)):
        if others := set(table.column(name).unique().to_pylist()) - {value}:
            return f"has rows of {name} {others.pop()!r}, not {value!r}"
    values = {name: table.column(name).to_numpy() for name, kind in columns.items() if kind != "string"}
    rows = Shards(manifest["samples"], manifest["shard"])[shard]
    problem = _find_wrong_samples(manifest["identity"], rows, values, read_metadata(table))
    return problem or _find_wrong_value(manifest["identity"], values)


def find_broken_images(table: Any, ids: np.ndarray, shape: list[int]) -> str | None:
    """Why the images of a shard do not fit its margins; None if they do."""
    names = dict.fromkeys(["original", "adversarial", *(name for name in table.column_names if name != "id")])
    problem = find_wrong_column(table, {"id": "int64"}) or find_wrong_images(table, names, shape)
    if read_metadata(table).get("shape") != shape:
        return f"is not of images of shape {tuple(shape)}"
    if problem is None and not np.array_equal(table.column("id").to_numpy(), ids):
        return "has other samples than its margins"
    return problem


def find_broken_bounds(table: Any, margins: Any, shape: list[int]) -> str | None:
    """Why bounds do not fit the margins of their shard; None if they do."""
    if problem := find_wrong_column(table, BOUNDS):
        return problem
    if not np.array_equal(table.column("id").to_numpy(), margins.column("id").to_numpy()):
        return "has other samples than its margins"
    value = {name: table.column(name).to_numpy() for name, kind in BOUNDS.items() if kind != "string"}
    distance = margins.column("distance").to_numpy()
    named = np.array([name != "" for name in table.column("certified_by").to_pylist()], dtype=bool)
    broken = {
        "a lower bound below 0 or above its upper bound": ~((value["lower"] >= 0) & (value["lower"] <= value["upper"])),
        "an upper bound above its margin": ~(value["upper"] <= distance),
        "a bound without a method, or a method without a bound": named != (value["lower"] > 0),
        **{f"{name} below 0": value[name] < 0 for name in ("kkt", "spread", "estimate")},
    }
    for what, rows in broken.items():
        if rows.any():
            return f"has {what} in row {np.flatnonzero(rows)[0]}"
    nearer = bool((value["upper"] < distance).any())
    return find_wrong_images(table, ["adversarial"], shape) if nearer else None


def find_wrong_images(table: Any, names: Iterable[str], shape: list[Any]) -> str | None:
    """The first of these columns that does not hold images of this shape."""
    import pyarrow as pa

    if not all(type(length) is int and length > 0 for length in shape):
        return f"has images of shape {shape}"
    for name in names:
        kind: Any = table.schema.field(name).type if name in table.column_names else pa.null()
        images = pa.types.is_fixed_size_list(kind) and str(kind.value_type) in PIXELS
        if not images or kind.list_size != prod(shape):
            return f"has no column {name} with images of shape {tuple(shape)}"
        if table.column(name).null_count or table.column(name).combine_chunks().flatten().null_count:
            return f"has empty cells in column {name}"
    return None


def find_wrong_column(table: Any, columns: Mapping[str, str]) -> str | None:
    """The first column that is missing, has another type or empty cells."""
    types = {field.name: str(field.type).replace("double", "float64") for field in table.schema}
    for name, kind in columns.items():
        if types.get(name) != kind:
            return f"has no column {name} of type {kind}"
        if table.column(name).null_count:
            return f"has empty cells in column {name}"
    return None


def _find_wrong_samples(identity: Any, rows: range, values: Mapping[str, Any], about: Mapping[str, Any]) -> str | None:
    """Compare the samples of a shard with the order of the run, and their counts with its metadata."""
    ids, expected = values["id"], read_order(identity, rows)
    if identity["only_correct"]:
        expected = expected[np.isin(expected, ids)]
    if len(ids) != len(expected):
        return f"has {len(ids)} rows, not {len(expected)}"
    if (wrong := np.flatnonzero(ids != expected)).size:
        return f"has sample {ids[wrong[0]]} in row {wrong[0]}, not {expected[wrong[0]]}"
    seen, right = about.get("seen"), about.get("right")
    if type(seen) is not int or type(right) is not int or seen != len(rows) or not 0 <= right <= seen:
        return f"counts {right} of {seen} samples as correct, but its shard has {len(rows)}"
    correct = len(ids) if identity["only_correct"] else int((values["label"] == values["prediction"]).sum())
    if right != correct and (identity["only_correct"] or identity["target"] is None):
        return f"counts {right} samples as correct, but {correct} of its rows are"
    return None


def _find_wrong_value(identity: Any, values: Mapping[str, Any]) -> str | None:
    """Find the first value that is outside its possible range."""
    values = {**values, "forwards + backwards": values["forwards"] + values["backwards"]}
    classes = dict.fromkeys(("label", "prediction", "adversarial_label"), (0, MAX_CLASS))
    allowed: dict[str, tuple[float, float]] = classes | {
        "target": (-1, -1 if identity["target"] is None else MAX_CLASS), "confidence": (0, 1), "distance": (0, np.inf),
        "forwards": (0, np.inf), "backwards": (0, np.inf), "forwards + backwards": (0, identity["budget"] or np.inf),
    }  # fmt: skip
    for name, (low, high) in allowed.items():
        wrong = np.flatnonzero(~((values[name] >= low) & (values[name] <= high)))
        if wrong.size:
            return f"has {name} {values[name][wrong[0]]} in row {wrong[0]}, outside of {low} to {high}"
    return None
