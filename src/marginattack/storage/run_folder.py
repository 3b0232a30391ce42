"""The run folder: a manifest, and Parquet shards that are written atomically.

    RUN/manifest.json                                  what was measured, with what, where and when
    RUN/findings.json                                  what the diagnosis found
    RUN/margins/<attack>-<norm>/part-00000.parquet     one row per sample, numbers only
    RUN/images/<attack>-<norm>/part-00000.parquet      the inputs and their adversarial images
    RUN/bounds/<attack>-<norm>/part-00000.parquet      lower bounds of the margins, if requested (``bounds.py``)
    RUN/traces.parquet                                 each query of the attacks on a few samples

A shard is finished once its margins file exists; its images are written first. File names are deterministic: a shard
that is computed twice replaces its file with the same content.

Digests form a chain: the manifest records the digest of each margins file, which records that of its images; the rows
of both have digests in their own metadata (``parquet.py``). A shard that the manifest does not record yet, because its
session was killed, must match its own digest and, like every shard, pass the checks of ``contract.py``.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.storage import contract
from marginattack.storage.contract import COLUMNS as COLUMNS
from marginattack.storage.files import make_folder, remove_temporary_files
from marginattack.storage.lock import Lease
from marginattack.storage.manifest import FORMAT, Shards, read_manifest, write_json, write_manifest
from marginattack.storage.manifest import Part as Part
from marginattack.storage.parquet import digest_bytes, make_column, read_column, read_metadata, read_table, write_table
from marginattack.storage.paths import StoragePath, parse_path

PIXELS_PER_GROUP = 2**22  # of images: reading one image loads its row group
SHARDS = "margins/*/part-*.parquet"
KINDS = ("margins", "images")
FILES = ("findings.json", "traces.parquet")  # written again by each session
AGAIN = "delete it and run the same `measure` command again"


class RunFolder:
    """A run folder on disk or on an object store. Writers must hold its lease; readers need no lock."""

    def __init__(self, path: str | StoragePath, lease: Lease | None = None) -> None:
        self.path, self.lease = parse_path(path), lease
        self.manifest = read_manifest(self.path)
        self._seen = b""  # the manifest file when it was last found to be that of this run
        self.parts = [Part(**part) for part in self.manifest["parts"]]

    @classmethod
    def create_or_resume(
        cls, path: str | StoragePath, identity: dict[str, Any], about: dict[str, Any], lease: Lease | None = None
    ) -> "RunFolder":
        """Start a run, or resume an existing one with the same identity. The caller must hold the lease.

        ``identity`` is everything that the results depend on, ``about`` the rest of the manifest of a new run.
        """
        path = parse_path(path)
        cls.check_compatible(path, identity)
        remove_temporary_files(path)
        if not any(path.glob(SHARDS)):
            write_manifest(path, {"format": FORMAT, "identity": identity, **about})
        return cls(path, lease)

    @classmethod
    def begun(cls, path: str | StoragePath) -> "RunFolder | None":
        """The run at this path if it has a finished shard, and so can only be resumed; else None."""
        path = parse_path(path)
        run = cls(path) if (path / "manifest.json").exists() else None
        return run if run is not None and any(path.glob(SHARDS)) else None

    @classmethod
    def check_compatible(cls, path: str | StoragePath, identity: dict[str, Any]) -> None:
        """Raise InputError for a folder with results of other settings or of an older format, or with other files."""
        path = parse_path(path)
        if (path / "manifest.json").exists():
            begun = cls.begun(path)
            if begun is None:
                return
            manifest = begun.manifest
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
    def shards(self) -> Shards:
        """The samples of each shard: positions in the run's order."""
        return Shards(self.manifest["samples"], self.manifest["shard"])

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
        images = set(self.list_shards("images"))
        return [each for each in self.list_shards("margins") if each in images]

    def count_missing(self) -> Counter[str]:
        """By the name of a part, the number of its shards that are not finished."""
        finished = Counter(part for _, part in self.finished())
        return +Counter({part.name: len(self.shards) - finished[part] for part in self.parts})

    def lost(self, present: Iterable[tuple[int, Part]]) -> list[tuple[int, Part]]:
        """The shards that the manifest records as finished but that are not present."""
        digests, present = self.manifest.get("digests", {}), set(present)
        recorded = (
            (shard, part) for part in self.parts for shard, each in enumerate(digests.get(part.name, [])) if each
        )
        return [each for each in recorded if each not in present]

    def list_shards(self, kind: str) -> list[tuple[int, Part]]:
        """The shards with a file of this kind, in order; raises InputError for files that belong to no shard."""
        parts, found = {part.name: i for i, part in enumerate(self.parts)}, []
        for file in self.path.glob(f"{kind}/*/part-*.parquet"):
            number, part = re.fullmatch(r"part-(\d{5,12})\.parquet", file.name), parts.get(file.parent.name)
            shard = int(number[1]) if number else -1
            if part is None or not 0 <= shard < len(self.shards) or file.name != f"part-{shard:05d}.parquet":
                raise InputError(f"{file} is not a shard of this run: move it out of the folder")
            found.append((shard, part))
        return [(shard, self.parts[part]) for shard, part in sorted(found)]

    def commit(
        self, part: Part, shard: int, columns: Mapping[str, Any], images: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> None:
        """Write a shard: its images, then its margins, which mark it as finished."""
        import pyarrow as pa

        self.check_current()
        shape, stamped = list(images["original"].shape[1:]), contract.stamp(self.manifest, part, shard)
        table = pa.table({"id": make_column(columns["id"], "int64"), **{k: make_column(v) for k, v in images.items()}})
        rows_per_group = max(1, PIXELS_PER_GROUP // max(1, int(np.prod(shape))))
        for kind in KINDS:
            make_folder(self.file(kind, part, shard).parent)
        digest = write_table(self.file("images", part, shard), table, {**stamped, "shape": shape}, rows_per_group)
        n = len(columns["id"])
        every = {"attack": [part.attack] * n, "norm": [part.norm] * n, **columns}
        table = pa.table({name: make_column(every[name], kind) for name, kind in COLUMNS.items() if name in every})
        self.check_current()  # images can take a while
        write_table(self.file("margins", part, shard), table, {**stamped, "images": digest, **about})

    def check_current(self) -> None:
        """Raise InputError if another process took over while this one was suspended or cut off."""
        if self.lease is not None:
            self.lease.check()
        content = (self.path / "manifest.json").read_bytes()
        if content != self._seen and read_manifest(self.path).get("started") != self.manifest.get("started"):
            raise InputError(f"{self.path} was restarted by another process in the meantime: leave it to that process")
        self._seen = content

    def read(self, part: Part, shard: int) -> Any:
        """The margins of a shard as a pyarrow Table, after all checks."""
        path = self.file("margins", part, shard)
        table = self._read(path, part, shard)
        recorded = self.manifest.get("digests", {}).get(part.name, [])[shard : shard + 1]
        if recorded not in ([], [None], [read_metadata(table).get("digest")]):
            raise InputError(f"{path} is not the shard that manifest.json records (other digest): {AGAIN}")
        if problem := contract.find_broken(self.manifest, part, shard, table):
            raise InputError(f"{path} {problem}: {AGAIN}")
        return table

    def _read(self, path: StoragePath, part: Part, shard: int, positions: Sequence[int] | None = None) -> Any:
        """A file of a shard that matches its own digests and belongs to this shard."""
        table = read_table(path, hint=AGAIN, positions=positions)
        if problem := contract.find_misplaced(read_metadata(table), contract.stamp(self.manifest, part, shard)):
            raise InputError(f"{path} {problem}: {AGAIN}")
        return table

    def read_all(self, parts: Sequence[Part] | None = None) -> Iterator[tuple[int, Part, Any]]:
        """Yield every finished shard with its margins; raises InputError if some were lost."""
        present = self.list_shards("margins")
        for shard, part in self.lost(present):
            hint = "copy the complete run folder, or run the same `measure` command again"
            raise InputError(f"{self.file('margins', part, shard)} is missing, but manifest.json records it: {hint}")
        found = [each for each in present if parts is None or each[1] in parts]
        if not found:
            raise InputError(f"{self.path} has no finished shard yet: run the same `measure` command to resume it")
        for shard, part in found:
            yield shard, part, self.read(part, shard)

    def table(self, columns: Sequence[str] | None = None, part: Part | None = None, shard: int | None = None) -> Any:
        """The margins of every finished shard, or of one, as a pyarrow Table with one row per sample and part."""
        import pyarrow as pa

        if part is not None and shard is not None:
            tables = [self.read(part, shard)]
        else:
            found = sorted(self.read_all(None if part is None else [part]), key=lambda each: self.parts.index(each[1]))
            tables = [table for _, _, table in found]
        names = columns or tables[0].column_names
        return pa.concat_tables(table.select(names).replace_schema_metadata(None) for table in tables)

    def numeric_columns(self, part: Part, shard: int | None = None) -> dict[str, Tensor]:
        """The numeric columns of a part, or of one of its shards."""
        return numeric_columns(self.table(None, part, shard))

    def images(
        self, part: Part, shard: int, positions: Sequence[int] | None = None, *, margins: Any = None
    ) -> dict[str, Tensor]:
        """The ids, inputs and adversarial images of a shard, or some of its rows; pass ``margins`` if already read."""
        path, margins = self.file("images", part, shard), self.read(part, shard) if margins is None else margins
        if not path.exists():
            raise InputError(
                f"{path} is missing: copy the complete run folder, or run the same `measure` command again"
            )
        table = self._read(path, part, shard, positions)
        if read_metadata(margins).get("images") != read_metadata(table).get("digest"):  # older formats have neither
            raise InputError(f"{path} does not belong to the margins of its shard (other digest): {AGAIN}")
        ids, shape = margins.column("id").to_numpy(), self.manifest["data"]["shape"]
        if problem := contract.find_broken_images(table, ids if positions is None else ids[positions], shape):
            raise InputError(f"{path} {problem}: {AGAIN}")
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

    def names(self, part: Part) -> dict[str, Any]:
        """The ``names`` of the samples of a part, and the names of the ``classes``, if they are known."""
        data, found = self.manifest["data"], dict[str, Any]()
        if data.get("names"):
            found["names"] = tuple(self.table(["name"], part).column("name").to_pylist())
        if classes := self.manifest["model"].get("classes") or data.get("classes"):
            found["classes"] = tuple(classes)
        return found

    def save_traces(self, traces: Iterable[tuple[Part, dict[str, list[Any]]]]) -> None:
        """Store each query of the attacks on a few samples of each part."""
        import pyarrow as pa

        tables = []
        for part, rows in traces:
            names = {"attack": [part.attack] * len(rows["id"]), "norm": [part.norm] * len(rows["id"])}
            if rows["id"]:  # columns without a row have no type
                tables.append(pa.table({**names, **rows}))
        if tables:
            write_table(self.path / "traces.parquet", pa.concat_tables(tables), {"format": FORMAT})

    def traces(self) -> Any:
        """The stored traces as a pyarrow Table; None if there are none."""
        file = self.path / "traces.parquet"
        self._check_file(file)
        if not file.exists():
            return None
        table = read_table(file, hint=AGAIN)
        if problem := contract.find_wrong_column(table, contract.TRACES):
            raise InputError(f"{file} {problem}: {AGAIN}")
        return table

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The stored findings of the diagnosis."""
        from marginattack.storage.schema import FINDINGS, find_problem

        file = self.path / "findings.json"
        self._check_file(file)
        if not file.exists():
            return []
        try:
            findings: list[dict[str, Any]] = json.loads(file.read_text())
            problem = find_problem(FINDINGS, findings)
        except (ValueError, RecursionError) as error:
            problem = one_line(error)
        if problem:
            raise InputError(f"{file} is damaged ({problem}): {AGAIN}")
        return findings

    def _check_file(self, file: StoragePath) -> None:
        """Raise InputError if a file is not the one that the manifest records."""
        recorded = self.manifest.get("files", {}).get(file.name)
        if recorded is not None and recorded != (digest_bytes(file.read_bytes()) if file.exists() else ""):
            raise InputError(
                f"{file} was changed or removed after it was written (other digest in manifest.json): {AGAIN}"
            )

    def save_findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Store the findings of the diagnosis."""
        write_json(self.path / "findings.json", list(findings))

    def begin_session(self) -> None:
        """Check every finished shard, and drop manifest entries of files that will be written again."""
        finished = self.finished()
        for shard, part in finished:
            self.read(part, shard)
        if self.manifest.get("digests"):
            recorded, keep = self.manifest["digests"], set(finished)
            digests = {
                part.name: [each if (i, part) in keep else None for i, each in enumerate(recorded.get(part.name, []))]
                for part in self.parts
            }
            self.update_manifest(digests=digests, files={}, verified=None, finished=None)

    def end_session(self, digests: Mapping[tuple[int, Part], str], **about: Any) -> None:
        """Record the digests of the finished shards and of the other files."""
        every = {part.name: [digests.get((i, part)) for i in range(len(self.shards))] for part in self.parts}
        files = {name: digest_bytes((self.path / name).read_bytes()) for name in FILES if (self.path / name).exists()}
        self.update_manifest(digests=every, files=files, **about)

    def update_manifest(self, **about: Any) -> None:
        """Add to the manifest, or replace entries."""
        self.check_current()
        self.manifest.update(about)
        write_manifest(self.path, self.manifest)


def numeric_columns(table: Any) -> dict[str, Tensor]:
    """The numeric columns of margins."""
    return {
        name: read_column(table, name) for name in table.column_names if str(table.schema.field(name).type) != "string"
    }


def now() -> str:
    """The present time, as manifests record it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def differences(before: Any, after: Any) -> str:
    """Describe which settings differ; empty if none does."""
    old, new = _flatten(before), _flatten(after)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    names = {"search": "precision"}  # the format keeps the former name
    shown = "; ".join(
        f"{names.get(name, name)} was {_shorten(old.get(name))}, is {_shorten(new.get(name))}" for name in changed[:3]
    )
    return shown + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")


def _flatten(tree: Any, name: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    if not isinstance(tree, dict) or not tree:
        return {name: tree}
    return {k: v for key, below in tree.items() for k, v in _flatten(below, f"{name}.{key}".strip(".")).items()}


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
