"""Bounds in a run folder: one file per shard, read together with its margins.

A bounds file records the digest of its margins. The manifest records the settings of the bounds and the digest of each
file. Bounds of other settings are refined: the better of both is kept. If a solver or another seed found a nearer
adversarial point than the attack, the file holds the point, and readers see its distance.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError
from marginattack.storage import contract
from marginattack.storage.files import make_folder
from marginattack.storage.parquet import make_column, open_parquet, read_column, read_metadata, read_table, write_table
from marginattack.storage.run_folder import Part, RunFolder, numeric_columns

KIND = "bounds"
AGAIN = "delete it and run `marginattack bound` again"
UNBOUNDED = {"lower": 0.0, "kkt": float("nan"), "spread": float("nan")}  # columns of Margins without bounds


def begin_bounds(folder: RunFolder, settings: dict[str, Any]) -> None:
    """Check existing bounds; record in the manifest the settings, and which files already have bounds of them."""
    kept, done = {}, set(folder.list_shards(KIND))
    for shard, part in done:
        about = read_metadata(_read(folder, part, shard))
        kept[shard, part] = about["digest"] if settings in _met(about) else None  # None: will be refined
    if done != set(folder.finished()) or None in kept.values() or not folder.manifest.get(KIND):
        folder.update_manifest(bounds={"settings": settings, "digests": _by_part(folder, kept)})


def end_bounds(folder: RunFolder) -> None:
    """Record the digest of each bounds file in the manifest."""
    found = {(i, part): read_metadata(_read(folder, part, i))["digest"] for i, part in folder.list_shards(KIND)}
    folder.update_manifest(bounds={**folder.manifest[KIND], "digests": _by_part(folder, found)})


def pending_bounds(folder: RunFolder) -> list[tuple[int, Part]]:
    """The finished shards without bounds, in order."""
    done = set(folder.list_shards(KIND))
    return [each for each in folder.finished() if each not in done]


def open_bounds(folder: RunFolder, settings: dict[str, Any]) -> list[tuple[int, Part]]:
    """The finished shards without bounds of these settings, in order; bounds of other settings are refined."""
    found = pending_bounds(folder)
    for shard, part in folder.list_shards(KIND):
        with open_parquet(folder.file(KIND, part, shard)) as file:
            if settings not in _met(read_metadata(file.schema_arrow)):
                found.append((shard, part))
    return sorted(found, key=lambda each: (each[0], folder.parts.index(each[1])))


def commit_bounds(
    folder: RunFolder, part: Part, shard: int, margins: Any, columns: Mapping[str, Any], settings: Mapping[str, Any],
    earlier: Sequence[Mapping[str, Any]] = (),
) -> None:  # fmt: skip
    """Write the bounds of a shard; ``adversarial`` among the columns are the points that its upper bounds belong to.

    ``earlier`` are the settings of bounds that were refined.
    """
    import pyarrow as pa

    table = pa.table({name: make_column(columns[name], contract.BOUNDS.get(name)) for name in columns})
    about = {"margins": read_metadata(margins)["digest"], "settings": settings}
    if earlier := [each for each in earlier if each != settings]:
        about["earlier"] = earlier
    folder.check_current()
    make_folder(folder.file(KIND, part, shard).parent)
    write_table(folder.file(KIND, part, shard), table, {**contract.stamp(folder.manifest, part, shard), **about})


def join_bounds(folder: RunFolder, part: Part, shard: int, margins: Any) -> Any:
    """The margins of a shard with the columns of its bounds, if any, and the nearest distances."""
    if not folder.manifest.get(KIND):
        return margins
    recorded = folder.manifest[KIND].get("digests", {}).get(part.name, [])[shard : shard + 1]
    if not folder.file(KIND, part, shard).exists():
        if recorded not in ([], [None]):
            path = folder.file(KIND, part, shard)
            raise InputError(f"{path} is missing, but manifest.json records it: run `marginattack bound` again")
        unknown = {name: make_column(np.full(len(margins), value)) for name, value in UNBOUNDED.items()}
        columns = {**unknown, "estimate": unknown["kkt"], "certified_by": make_column([""] * len(margins), "string")}
        for name, column in columns.items():
            margins = margins.append_column(name, column)
        return margins
    table = _read(folder, part, shard, margins)
    if recorded not in ([], [None], [read_metadata(table).get("digest")]):
        path = folder.file(KIND, part, shard)
        raise InputError(f"{path} is not the file that manifest.json records (other digest): {AGAIN}")
    return _join(margins, table)


def join_refined(folder: RunFolder, part: Part, shard: int, margins: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The margins of a shard with the bounds to be refined, if any, and the settings of these bounds."""
    if not folder.file(KIND, part, shard).exists():
        return margins, []
    table = _read(folder, part, shard, margins)
    return _join(margins, table), _met(read_metadata(table))


def _join(margins: Any, table: Any) -> Any:
    """Margins with the columns of their bounds and the nearest distances."""
    replaced = {"distance": table.column("upper"), "adversarial_label": table.column("adversarial_label")}
    replaced["success"] = make_column(np.isfinite(table.column("upper").to_numpy()))
    for name, column in replaced.items():
        margins = margins.set_column(margins.column_names.index(name), name, column)
    for name in (*UNBOUNDED, "estimate", "certified_by"):
        margins = margins.append_column(name, table.column(name))
    return margins


def _met(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings with which the bounds of a file were computed, in order."""
    return [*about.get("earlier", []), about["settings"]]


def nearest_images(
    folder: RunFolder, part: Part, shard: int, positions: Sequence[int] | None = None, *, margins: Any = None
) -> dict[str, Tensor]:
    """The images of a shard as ``RunFolder.images`` reads them, with the nearest known adversarial points."""
    images, path = folder.images(part, shard, positions, margins=margins), folder.file(KIND, part, shard)
    if folder.manifest.get(KIND) and path.exists():
        table = _read(folder, part, shard, margins)
        if "adversarial" in table.column_names:
            nearest = read_column(table, "adversarial", folder.manifest["data"]["shape"])
            images["adversarial"] = nearest if positions is None else nearest[list(positions)]
    return images


def read_part(folder: RunFolder, part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns and images of a part with its bounds, and the settings that it was measured with."""
    tables = {shard: table for shard, _, table in folder.read_all([part])}
    images = [nearest_images(folder, part, shard, margins=table) for shard, table in tables.items()]
    joined = [join_bounds(folder, part, shard, table) for shard, table in tables.items()]
    each = [numeric_columns(table) for table in joined]
    columns: dict[str, Any] = {name: torch.cat([some[name] for some in each]) for name in each[0]}
    columns |= {name: torch.cat([some[name] for some in images]) for name in ("original", "adversarial")}
    if "certified_by" in joined[0].column_names:
        columns["certified_by"] = tuple(name for table in joined for name in table.column("certified_by").to_pylist())
    identity = folder.manifest["identity"]
    attack = folder.manifest["attacks"][part.attack]
    radius = folder.manifest.get("radii", {}).get(part.attack)
    within = {} if radius is None else {"within": radius}
    return columns, {**identity, "attack": attack, "targeted": identity["target"] is not None, **within}


def _read(folder: RunFolder, part: Part, shard: int, margins: Any = None) -> Any:
    """The bounds of a shard as a pyarrow Table, after all checks."""
    path, margins = folder.file(KIND, part, shard), folder.read(part, shard) if margins is None else margins
    table = read_table(path, hint=AGAIN)
    about = read_metadata(table)
    problem = contract.find_misplaced(about, contract.stamp(folder.manifest, part, shard))
    if problem is None and about.get("margins") != read_metadata(margins).get("digest"):
        problem = "belongs to other margins (other digest)"
    problem = problem or contract.find_broken_bounds(table, margins, folder.manifest["data"]["shape"])
    if problem:
        raise InputError(f"{path} {problem}: {AGAIN}")
    return table


def _by_part(folder: RunFolder, digests: Mapping[tuple[int, Part], str | None]) -> dict[str, list[str | None]]:
    return {part.name: [digests.get((i, part)) for i in range(len(folder.shards))] for part in folder.parts}
