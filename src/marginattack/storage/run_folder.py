"""The run folder: a manifest, and Parquet shards that are committed whole or not at all.

    RUN/manifest.json                                  what was measured, with what, where and when
    RUN/findings.json                                  what the diagnosis said
    RUN/margins/<attack>-<norm>/part-00000.parquet     one row a sample, numbers alone
    RUN/images/<attack>-<norm>/part-00000.parquet      the inputs and their adversarial images
    RUN/traces.parquet                                 what the attacks did, look by look, to a few samples

A shard is there once its margins file is: images are written first, each file whole or not at all (``places``).
Names are deterministic, so whoever computes a shard again writes the same file.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.margins import Margins
from marginattack.storage.lock import locked as locked
from marginattack.storage.lock import still_ours
from marginattack.storage.paths import make, place, sweep, whole

FORMAT = 1
GROUP = 2**22  # pixels of a row group of images: what is read for one image

NEEDED = ("identity", "parts", "samples", "shard", "model", "data", "attacks", "sessions")

# the columns of a margins file and their types; distance_255 is there with --lattice 255
COLUMNS = {
    "id": "int64",  # the row in the data source
    "input": "string",  # fingerprint of the pixels
    "attack": "string",
    "norm": "string",
    "label": "int64",
    "prediction": "int64",
    "confidence": "float64",  # softmax of the prediction
    "target": "int64",  # -1: any wrong class
    "adversarial_label": "int64",
    "distance": "float64",  # infinity: nothing found; 0: misclassified as it is
    "success": "bool",
    "rejected": "bool",  # found, but not adversarial when checked again
    "forwards": "int64",
    "backwards": "int64",
    "distance_at_90pct": "float64",  # the best distance when about nine tenths of the passes were spent
    "distance_255": "float64",  # of the image that is adversarial at 8 bits
}


@dataclass(frozen=True)
class Part:
    """One attack under one norm: a column of the work, and a folder of shards."""

    attack: str
    norm: str

    @property
    def name(self) -> str:
        return f"{self.attack.replace(':', '-')}-{self.norm}"


class Store:
    """A run folder. Writing is for whoever holds the lock; reading is for everybody, at any time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = place(path)
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
            if not isinstance(self.manifest, dict):
                raise ValueError("manifest.json is no table of names")
        except FileNotFoundError:
            raise InputError(
                f"{self.path} holds no run: there is no manifest.json; give a folder that `measure --out` wrote"
            ) from None
        except (ValueError, NotADirectoryError, OSError) as error:
            raise InputError(f"{self.path} holds no run that can be read: {one_line(error)}") from None
        if self.manifest.get("format") != FORMAT:
            found = self.manifest.get("format")
            hint = "it was made by another version of marginattack; measure again, or use that version"
            raise InputError(f"{self.path} has run format {found}, this version reads {FORMAT}: {hint}")
        missing = [name for name in NEEDED if name not in self.manifest]
        if missing:
            raise InputError(f"{self.path} holds no run that can be read: manifest.json has no {missing[0]}")
        self.parts = [Part(**part) for part in self.manifest["parts"]]

    @classmethod
    def begin(cls, path: str | os.PathLike[str], identity: dict[str, Any], about: dict[str, Any]) -> "Store":
        """A new run, or the one that lies there if it is the same. Call it with the lock held.

        ``identity`` is all that the results depend on, and must agree; ``about`` is the rest of a new manifest.
        """
        path = place(path)
        cls.compatible(path, identity)
        sweep(path)
        if any(path.glob("margins/*/part-*.parquet")):
            return cls(path)
        manifest = {"format": FORMAT, "identity": identity, **about}
        _write(path / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
        return cls(path)

    @classmethod
    def compatible(cls, path: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        """Refuse a folder that holds results of other settings, or things that are no run."""
        path = place(path)
        if (path / "manifest.json").exists():
            there = cls(path)  # or a refusal: somebody else's manifest.json is not written over
            if any(path.glob("margins/*/part-*.parquet")):
                _same(path, there.manifest["identity"], identity)
        elif path.is_dir():
            foreign = [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]
            if foreign:
                raise InputError(
                    f"{path} holds other things ({foreign[0]}, …) and no run: give a new or an empty folder"
                )
        elif path.exists():
            raise InputError(f"{path} is a file: give a folder to write the run into")

    @property
    def shards(self) -> list[range]:
        """The samples of each shard: places in the run's order."""
        n, size = self.manifest["samples"], self.manifest["shard"]
        return [range(first, min(first + size, n)) for first in range(0, n, size)]

    def file(self, kind: str, part: Part, shard: int) -> Path:
        """Where the margins or the images of a shard are."""
        return self.path / kind / part.name / f"part-{shard:05d}.parquet"

    def pending(self) -> list[tuple[int, Part]]:
        """The shards that are not there yet, in order."""
        every = ((shard, part) for shard in range(len(self.shards)) for part in self.parts)
        there = {str(file) for kind in ("images", "margins") for file in self.path.glob(f"{kind}/*/part-*.parquet")}
        return [(s, p) for s, p in every if not {str(self.file(kind, p, s)) for kind in ("images", "margins")} <= there]

    def finished(self) -> list[tuple[int, Part]]:
        """The shards that are there, in order."""
        pending = set(self.pending())
        every = [(shard, part) for shard in range(len(self.shards)) for part in self.parts]
        return [each for each in every if each not in pending]

    def first(self, part: Part) -> int | None:
        """The first shard of a part that is there."""
        return next((shard for shard in range(len(self.shards)) if self.has(part, shard)), None)

    def has(self, part: Part, shard: int) -> bool:
        """Whether a shard is there, its images and its margins."""
        return all(self.file(kind, part, shard).exists() for kind in ("images", "margins"))

    def commit(
        self, part: Part, shard: int, columns: Mapping[str, Any], images: Mapping[str, Tensor], about: Mapping[str, Any]
    ) -> None:
        """Write a shard: its images, then its margins, which is what makes it count."""
        import pyarrow as pa

        still_ours(self.path)
        shape = list(images["original"].shape[1:])
        flat = {name: _fixed_lists(tensor) for name, tensor in images.items()}
        table = pa.table({"id": pa.array(_plain(columns["id"]), pa.int64()), **flat})
        width = max(1, int(np.prod(shape)))
        _write_table(self.file("images", part, shard), table, {"shape": shape, "shard": shard}, max(1, GROUP // width))
        rows = len(columns["id"])
        every = {"attack": [part.attack] * rows, "norm": [part.norm] * rows, **columns}
        types = {name: pa.type_for_alias(kind) for name, kind in COLUMNS.items() if name in every}
        table = pa.table({name: pa.array(_plain(every[name]), kind) for name, kind in types.items()})
        _write_table(self.file("margins", part, shard), table, {"shard": shard, **about})

    def still_ours(self) -> None:
        """Refuse to go on where another process took the run over, as can happen on an object store."""
        still_ours(self.path)

    def sweep(self) -> None:
        """Take away what workers began and never finished."""
        sweep(self.path)

    def table(self, columns: Sequence[str] | None = None, part: Part | None = None, shard: int | None = None) -> Any:
        """The margins of every shard that is there, or of one, as a pyarrow Table, one row a sample and part."""
        import pyarrow as pa

        shards = range(len(self.shards)) if shard is None else [shard]
        wanted = self.parts if part is None else [part]
        files = [self.file("margins", each, number) for each in wanted for number in shards]
        tables = [_read_table(file, columns) for file in files if file.exists()]
        if not tables:
            raise InputError(f"{self.path} holds no finished shard yet: the same `measure` command goes on with it")
        return pa.concat_tables(table.replace_schema_metadata(None) for table in tables)

    def columns(self) -> dict[str, np.ndarray]:
        """The numeric columns of every shard that is there, with the attack and the norm of each row."""
        parts = {part: self.numbers(part) for part in self.parts if self.counted(part)[0]}
        lengths = {part: len(column["id"]) for part, column in parts.items()}
        every: dict[str, np.ndarray] = {
            "attack": np.concatenate([np.full(n, part.attack) for part, n in lengths.items()]),
            "norm": np.concatenate([np.full(n, part.norm) for part, n in lengths.items()]),
        }
        names = next(iter(parts.values()))
        return every | {name: np.concatenate([column[name].numpy() for column in parts.values()]) for name in names}

    def counted(self, part: Part) -> tuple[int, int]:
        """How many samples the finished shards of a part looked at, and how many of them are classified rightly."""
        seen = right = 0
        for shard in range(len(self.shards)):
            if (file := self.file("margins", part, shard)).exists():
                about = json.loads(_read_table(file, []).schema.metadata[b"marginattack"])
                seen, right = seen + about["seen"], right + about["right"]
        return seen, right

    def numbers(self, part: Part, shard: int | None = None) -> dict[str, Tensor]:
        """The numeric columns of a part, or of one of its shards."""
        table = self.table([name for name in COLUMNS if COLUMNS[name] != "string"], part, shard)
        return {name: torch.from_numpy(table.column(name).to_numpy().copy()) for name in table.column_names}

    def images(self, part: Part, shard: int) -> dict[str, Tensor]:
        """The ids, inputs and adversarial images of a shard."""
        table = _read_table(self.file("images", part, shard))
        shape = json.loads(table.schema.metadata[b"marginattack"])["shape"]
        found = {"id": torch.from_numpy(table.column("id").to_numpy().copy())}
        for name in table.column_names[1:]:
            values = table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
            found[name] = torch.from_numpy(values.copy()).reshape(-1, *shape)
        return found

    def find(self, *, norm: str | None = None, attack: str | None = None) -> Part:
        """The one part with this norm and attack, where None means any."""
        found = [part for part in self.parts if norm in (None, part.norm) and attack in (None, part.attack)]
        if len(found) == 1:
            return found[0]
        held = ", ".join(f"{part.attack} {part.norm}" for part in self.parts)
        which = " ".join(word for word in (attack, norm) if word) or "any part"
        raise InputError(f"{self.path} holds {held}, of which {len(found)} fit {which}: state the norm and the attack")

    def margins(self, part: Part) -> Margins:
        """The result of one attack under one norm, images included, as ``measure`` would have returned it."""
        columns = {name: column for name, column in self.numbers(part).items() if name in Margins.columns()}
        there = [shard for shard in range(len(self.shards)) if self.file("margins", part, shard).exists()]
        images = torch.cat([self.images(part, shard)["adversarial"] for shard in there])
        settings = {
            **self.manifest["identity"], "attack": self.manifest["attacks"][part.attack],
            "targeted": self.manifest["identity"]["target"] is not None,
        }  # fmt: skip
        return Margins(norm=part.norm, settings=settings, adversarial=images, **columns)

    def keep_traces(self, traces: Iterable[tuple[Part, dict[str, list[Any]]]]) -> None:
        """Store what the attacks did, look by look, to a few samples of each part."""
        import pyarrow as pa

        tables = []
        for part, rows in traces:
            names = {"attack": [part.attack] * len(rows["id"]), "norm": [part.norm] * len(rows["id"])}
            tables.append(pa.table({**names, **rows}))
        if tables:
            _write_table(self.path / "traces.parquet", pa.concat_tables(tables), {})

    def traces(self) -> Any:
        """What ``keep_traces`` stored, as a pyarrow Table; None where nothing was."""
        file = self.path / "traces.parquet"
        return _read_table(file) if file.exists() else None

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What the diagnosis said, as it was stored."""
        file = self.path / "findings.json"
        if not file.exists():
            return []
        try:
            return list(json.loads(file.read_text()))
        except ValueError:
            raise InputError(f"{file} is damaged: delete it, and the same `measure` command makes it again") from None

    def note(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Store what the diagnosis said."""
        _write(self.path / "findings.json", (json.dumps(list(findings), indent=1) + "\n").encode())

    def update(self, **about: Any) -> None:
        """Add to the manifest what was learnt on the way."""
        still_ours(self.path)
        self.manifest.update(about)
        _write(self.path / "manifest.json", (json.dumps(self.manifest, indent=1) + "\n").encode())


def now() -> str:
    """The time, for a manifest."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def differences(before: Any, after: Any) -> str:
    """Which settings differ, in words; nothing where none does."""
    old, new = _flat(before), _flat(after)
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    shown = "; ".join(f"{name} was {_short(old.get(name))}, is {_short(new.get(name))}" for name in differing[:3])
    return shown + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")


def _same(path: Path, before: Any, after: Any) -> None:
    """Refuse to mix results of different settings, and say which differ."""
    if changed := differences(before, after):
        raise InputError(f"{path} holds a run with other settings ({changed}): give another --out or those settings")


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
    """A tree of settings as dotted names."""
    if not isinstance(tree, dict) or not tree:
        return {name: tree}
    return {key: value for each, sub in tree.items() for key, value in _flat(sub, f"{name}.{each}".strip(".")).items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _fixed_lists(images: Tensor) -> Any:
    import pyarrow as pa

    width = int(np.prod(images.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(pa.array(images.flatten().numpy()), width)


def _plain(values: Any) -> Any:
    return values.numpy() if isinstance(values, Tensor) else values


def _write_table(path: Path, table: Any, about: dict[str, Any], rows: int | None = None) -> None:
    import pyarrow.parquet as pq

    table = table.replace_schema_metadata({"marginattack": json.dumps({"format": FORMAT, **about})})
    make(path.parent)
    with whole(path) as file:
        pq.write_table(table, file, row_group_size=rows, compression="zstd", compression_level=1)


def _read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path).read(columns=None if columns is None else list(columns))
    except (pa.ArrowInvalid, pa.ArrowIOError) as error:
        raise InputError(
            f"{path} is damaged ({one_line(error)}): delete it, and the same command makes it again"
        ) from None


def _write(path: Path, content: bytes) -> None:
    with whole(path) as file:
        file.write(content)
