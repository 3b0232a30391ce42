"""The run folder: a manifest, and Parquet shards that are written atomically.

    RUN/manifest.json                                  what was measured, with what, where and when
    RUN/findings.json                                  what the diagnosis found
    RUN/margins/<attack>-<norm>/part-00000.parquet     one row per sample, numbers only
    RUN/images/<attack>-<norm>/part-00000.parquet      the inputs and their adversarial images
    RUN/traces.parquet                                 each query of the attacks on a few samples

A shard is finished once its margins file exists; its images are written first. File names are deterministic, so that a
shard that is computed twice replaces its file by the same content.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.storage.files import make_folder, remove_temporary_files, write_atomically
from marginattack.storage.lock import Lease
from marginattack.storage.parquet import make_column, read_column, read_metadata, read_table, write_table
from marginattack.storage.paths import StoragePath, parse_path

FORMAT = 2
READABLE = (1, 2)
PIXELS_PER_GROUP = 2**22  # of a row group of images, which is what a reader of one image loads
REQUIRED = ("identity", "parts", "samples", "shard", "model", "data", "attacks", "sessions")
SHARDS = "margins/*/part-*.parquet"
KINDS = ("margins", "images")

# the columns of a margins file and their types; distance_255 exists with --lattice 255
COLUMNS = {
    "id": "int64",  # the row in the data source
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


@dataclass(frozen=True)
class Part:
    """One attack under one norm: a folder of shards."""

    attack: str
    norm: str

    @property
    def name(self) -> str:
        return f"{self.attack.replace(':', '-')}-{self.norm}"


class RunFolder:
    """A run folder on disk or on an object store. Writers must hold its lease; anybody may read at any time."""

    def __init__(self, path: str | StoragePath, lease: Lease | None = None) -> None:
        self.path, self.lease = parse_path(path), lease
        self.manifest = _read_manifest(self.path)
        self.parts = [Part(**part) for part in self.manifest["parts"]]

    @classmethod
    def create_or_resume(
        cls, path: str | StoragePath, identity: dict[str, Any], about: dict[str, Any], lease: Lease | None = None
    ) -> "RunFolder":
        """Start a run, or resume the run of the same identity that is there. Call it with the lease held.

        ``identity`` is everything that the results depend on, ``about`` the rest of the manifest of a new run.
        """
        path = parse_path(path)
        cls.check_compatible(path, identity)
        remove_temporary_files(path)
        if not any(path.glob(SHARDS)):
            _write_json(path / "manifest.json", {"format": FORMAT, "identity": identity, **about})
        return cls(path, lease)

    @classmethod
    def check_compatible(cls, path: str | StoragePath, identity: dict[str, Any]) -> None:
        """Refuse a folder with results of other settings, of an older format, or with files that are not a run."""
        path = parse_path(path)
        if (path / "manifest.json").exists():
            manifest = cls(path).manifest
            if not any(path.glob(SHARDS)):
                return
            if manifest["format"] != FORMAT:
                hint = "reports can read it, but it cannot be resumed; give another --out"
                raise InputError(f"{path} has run format {manifest['format']}, this version writes {FORMAT}: {hint}")
            if changed := differences(manifest["identity"], identity):
                hint = "give another --out, or use those settings"
                raise InputError(f"{path} holds a run with other settings ({changed}): {hint}")
        elif path.is_dir():
            others = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
            if others:
                raise InputError(f"{path} holds other files ({others[0]}, …) and no run: give a new or empty folder")
        elif path.exists():
            raise InputError(f"{path} is a file: give a folder for the run")

    @property
    def shards(self) -> list[range]:
        """The samples of each shard: positions in the run's order."""
        n, size = self.manifest["samples"], self.manifest["shard"]
        return [range(first, min(first + size, n)) for first in range(0, n, size)]

    def file(self, kind: str, part: Part, shard: int) -> StoragePath:
        """The path of the ``margins`` or ``images`` of a shard."""
        return self.path / kind / part.name / f"part-{shard:05d}.parquet"

    def pending(self) -> list[tuple[int, Part]]:
        """The shards that are not finished, in order."""
        finished = set(self.finished())
        every = ((shard, part) for shard in range(len(self.shards)) for part in self.parts)
        return [each for each in every if each not in finished]

    def finished(self) -> list[tuple[int, Part]]:
        """The shards that are finished, in order."""
        margins, images = ({str(file) for file in self.path.glob(f"{kind}/*/part-*.parquet")} for kind in KINDS)
        every = ((shard, part) for shard in range(len(self.shards)) for part in self.parts)
        return [
            (shard, part) for shard, part in every
            if str(self.file("margins", part, shard)) in margins and str(self.file("images", part, shard)) in images
        ]  # fmt: skip

    def first_finished(self, part: Part) -> int | None:
        """The first finished shard of a part, if there is one."""
        return next((shard for shard, each in self.finished() if each == part), None)

    def commit(
        self, part: Part, shard: int, columns: Mapping[str, Any], images: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> None:
        """Write a shard: its images, then its margins, which make it count."""
        import pyarrow as pa

        self.check_current()
        shape = list(images["original"].shape[1:])
        table = pa.table({"id": make_column(columns["id"], "int64"), **{k: make_column(v) for k, v in images.items()}})
        rows_per_group = max(1, PIXELS_PER_GROUP // max(1, int(np.prod(shape))))
        self._write("images", part, shard, table, {"shape": shape}, rows_per_group)
        n = len(columns["id"])
        every = {"attack": [part.attack] * n, "norm": [part.norm] * n, **columns}
        table = pa.table({name: make_column(every[name], kind) for name, kind in COLUMNS.items() if name in every})
        self.check_current()  # images can take a while
        self._write("margins", part, shard, table, about)

    def _write(
        self, kind: str, part: Part, shard: int, table: Any, about: Mapping[str, Any], rows_per_group: int | None = None
    ) -> None:
        path = self.file(kind, part, shard)
        make_folder(path.parent)
        write_table(path, table, {"format": FORMAT, "shard": shard, **about}, rows_per_group)

    def check_current(self) -> None:
        """Refuse to write if another process took over: one that was cut off or slept may come back to that."""
        if self.lease is not None:
            self.lease.check()
        if _read_manifest(self.path).get("started") != self.manifest.get("started"):
            raise InputError(f"{self.path} was restarted by another process in the meantime: leave it to that process")

    def table(self, columns: Sequence[str] | None = None, part: Part | None = None, shard: int | None = None) -> Any:
        """The margins of every finished shard, or of one, as a pyarrow Table with one row per sample and part."""
        import pyarrow as pa

        shards = range(len(self.shards)) if shard is None else [shard]
        parts = self.parts if part is None else [part]
        files = [self.file("margins", each, number) for each in parts for number in shards]
        tables = [_read_shard(file, columns) for file in files if file.exists()]
        if not tables:
            raise InputError(f"{self.path} has no finished shard yet: run the same `measure` command to resume it")
        return pa.concat_tables(table.replace_schema_metadata(None) for table in tables)

    def all_columns(self) -> dict[str, np.ndarray]:
        """Every column of every finished shard but the fingerprints."""
        table = self.table([name for name in COLUMNS if name != "input"])
        return {name: table.column(name).to_numpy() for name in table.column_names}

    def numeric_columns(self, part: Part, shard: int | None = None) -> dict[str, Tensor]:
        """The numeric columns of a part, or of one of its shards."""
        table = self.table([name for name, kind in COLUMNS.items() if kind != "string"], part, shard)
        return {name: read_column(table, name) for name in table.column_names}

    def count_samples(self, part: Part) -> tuple[int, int]:
        """How many samples the finished shards of a part examined, and how many of them are classified correctly."""
        files = [self.file("margins", part, shard) for shard in range(len(self.shards))]
        counts = [read_metadata(_read_shard(file, [])) for file in files if file.exists()]
        return sum(count["seen"] for count in counts), sum(count["right"] for count in counts)

    def images(self, part: Part, shard: int) -> dict[str, Tensor]:
        """The ids, inputs and adversarial images of a shard."""
        table = _read_shard(self.file("images", part, shard))
        shape = read_metadata(table)["shape"]
        return {name: read_column(table, name, () if name == "id" else shape) for name in table.column_names}

    def find(self, *, norm: str | None = None, attack: str | None = None) -> Part:
        """The one part with this norm and attack, where None means any."""
        matches = [part for part in self.parts if norm in (None, part.norm) and attack in (None, part.attack)]
        if len(matches) == 1:
            return matches[0]
        parts = ", ".join(f"{part.attack} {part.norm}" for part in self.parts)
        wanted = " ".join(word for word in (attack, norm) if word) or "any part"
        raise InputError(
            f"{self.path} has {parts}; {len(matches)} of them match {wanted}: state the norm and the attack"
        )

    def read_part(self, part: Part) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The numeric columns and adversarial images of a part, and the settings that it was measured with."""
        columns = self.numeric_columns(part)
        existing = [shard for shard in range(len(self.shards)) if self.file("margins", part, shard).exists()]
        columns["adversarial"] = torch.cat([self.images(part, shard)["adversarial"] for shard in existing])
        identity = self.manifest["identity"]
        attack = self.manifest["attacks"][part.attack]
        return columns, {**identity, "attack": attack, "targeted": identity["target"] is not None}

    def save_traces(self, traces: Iterable[tuple[Part, dict[str, list[Any]]]]) -> None:
        """Store each query of the attacks on a few samples of each part."""
        import pyarrow as pa

        tables = []
        for part, rows in traces:
            names = {"attack": [part.attack] * len(rows["id"]), "norm": [part.norm] * len(rows["id"])}
            tables.append(pa.table({**names, **rows}))
        if tables:
            write_table(self.path / "traces.parquet", pa.concat_tables(tables), {"format": FORMAT})

    def traces(self) -> Any:
        """What ``save_traces`` stored, as a pyarrow Table; None where nothing was."""
        file = self.path / "traces.parquet"
        return _read_shard(file) if file.exists() else None

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The stored findings of the diagnosis."""
        file = self.path / "findings.json"
        try:
            return list(json.loads(file.read_text())) if file.exists() else []
        except ValueError:
            raise InputError(f"{file} is damaged: delete it and run the same `measure` command again") from None

    def save_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Store the findings of the diagnosis."""
        _write_json(self.path / "findings.json", list(findings))

    def update_manifest(self, **about: Any) -> None:
        """Add to the manifest, or replace entries."""
        self.check_current()
        self.manifest.update(about)
        _write_json(self.path / "manifest.json", self.manifest)


def now() -> str:
    """The time, for a manifest."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def differences(before: Any, after: Any) -> str:
    """Describe which settings differ; empty if none does."""
    old, new = _flatten(before), _flatten(after)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    shown = "; ".join(f"{name} was {_shorten(old.get(name))}, is {_shorten(new.get(name))}" for name in changed[:3])
    return shown + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")


def _flatten(tree: Any, name: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    if not isinstance(tree, dict) or not tree:
        return {name: tree}
    return {k: v for key, below in tree.items() for k, v in _flatten(below, f"{name}.{key}".strip(".")).items()}


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _read_manifest(path: StoragePath) -> dict[str, Any]:
    """The manifest of a run folder under the present names, whichever readable format it has."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if not isinstance(manifest, dict):
            raise ValueError("manifest.json is not a JSON object")
    except FileNotFoundError:
        hint = "give a folder that `measure --out` wrote"
        raise InputError(f"{path} is not a run folder: it has no manifest.json; {hint}") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a readable run folder: {one_line(error)}") from None
    if manifest.get("format") not in READABLE:
        hint = "it was written by another version of marginattack; measure again, or use that version"
        raise InputError(f"{path} has run format {manifest.get('format')}, this version reads 1 to {FORMAT}: {hint}")
    missing = [name for name in REQUIRED if name not in manifest]
    if missing:
        raise InputError(f"{path} is not a readable run folder: manifest.json has no {missing[0]!r}")
    if "set_aside" in manifest:  # format 1
        manifest["failed_shards"] = manifest.pop("set_aside")
    return manifest


def _read_shard(path: StoragePath, columns: Sequence[str] | None = None) -> Any:
    return read_table(path, columns, hint="delete it and run the same `measure` command again")


def _write_json(path: StoragePath, content: Any) -> None:
    with write_atomically(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
