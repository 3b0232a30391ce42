"""The manifest of a run: what was measured, with what, where and when, and the digests of the files.

Its ``identity`` is everything that results depend on; the rest of the manifest must agree with it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np

from marginattack.errors import InputError, one_line
from marginattack.storage.files import write_atomically
from marginattack.storage.parquet import digest_json
from marginattack.storage.paths import StoragePath

FORMAT = 4
READABLE = (1, 2, 3, 4)
DIGESTS_SINCE = 3
HINT = "restore it from a copy, or measure again into another folder"


@dataclass(frozen=True)
class Part:
    """One attack under one norm: a folder of shards."""

    attack: str
    norm: str

    @property
    def name(self) -> str:
        return f"{self.attack.replace(':', '-')}-{self.norm}"


@dataclass(frozen=True)
class Shards(Sequence[range]):
    """The samples of each shard: positions in the run's order."""

    samples: int
    size: int

    def __len__(self) -> int:
        return -(-self.samples // self.size)

    @overload
    def __getitem__(self, index: int) -> range: ...
    @overload
    def __getitem__(self, index: slice) -> list[range]: ...
    def __getitem__(self, index: int | slice) -> range | list[range]:
        firsts = range(0, self.samples, self.size)[index]
        if isinstance(firsts, range):
            return [range(first, min(first + self.size, self.samples)) for first in firsts]
        return range(firsts, min(firsts + self.size, self.samples))


@lru_cache(maxsize=2)
def run_order(n: int, shuffle: int | None) -> np.ndarray:
    """The rows of a data set in the order of a run, before its limit."""
    return np.arange(n) if shuffle is None else np.random.default_rng(shuffle).permutation(n)


def read_order(identity: Mapping[str, Any], positions: range) -> np.ndarray:
    """The rows of the data at consecutive positions of the run's order."""
    if identity.get("sample") is not None:
        return np.array(identity["sample"], dtype=np.int64)[positions.start : positions.stop]
    if identity["shuffle"] is None:
        return np.arange(positions.start, positions.stop)
    return run_order(identity["data"]["n"], identity["shuffle"])[positions.start : positions.stop]


def read_manifest(path: StoragePath) -> dict[str, Any]:
    """Read the manifest of a run folder in any readable format, with the present names."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if not isinstance(manifest, dict):
            raise ValueError("manifest.json is not a JSON object")
    except FileNotFoundError:
        hint = "give a folder that `measure --out` wrote"
        raise InputError(f"{path} is not a run folder: it has no manifest.json; {hint}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} is not a readable run folder: {one_line(error)}") from None
    if manifest.get("format") not in READABLE:
        hint = "it was written by another version of marginattack; measure again, or use that version"
        raise InputError(f"{path} has run format {manifest.get('format')}, this version reads 1 to {FORMAT}: {hint}")
    if "set_aside" in manifest:  # format 1
        manifest["failed_shards"] = manifest.pop("set_aside")
    _check(path, manifest)
    return manifest


def write_manifest(path: StoragePath, manifest: Mapping[str, Any]) -> None:
    """Write the manifest with its digest at the end."""
    content = {name: value for name, value in manifest.items() if name != "digest"}
    write_json(path / "manifest.json", {**content, "digest": digest_json(content)})


def write_json(path: StoragePath, content: Any) -> None:
    """Write a JSON file atomically."""
    with write_atomically(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def _check(path: StoragePath, manifest: dict[str, Any]) -> None:
    """Raise InputError for a manifest with a missing or wrong field, that is inconsistent, or that was edited."""
    from marginattack.storage.schema import MANIFEST, find_problem

    file = path / "manifest.json"
    if problem := find_problem(MANIFEST, manifest):
        raise InputError(f"{file} is damaged ({problem}): {HINT}")
    identity = manifest["identity"]
    sample, n, limit = identity.get("sample"), identity["data"]["n"], identity["limit"]
    n = n if sample is None else len(sample)
    parts = [{"attack": attack, "norm": norm} for attack in identity["attacks"] for norm in identity["norms"]]
    expected: dict[str, Any] = {
        "samples": n if limit is None else min(n, limit), "shard": identity["shard"], "parts": parts,
        "attacks": identity["attacks"], "model": {**manifest["model"], **identity["model"]},
        "data": {**manifest["data"], **identity["data"]},
    }  # fmt: skip
    for name, value in expected.items():
        if manifest[name] != value:
            seen, stated = one_line(ValueError(repr(manifest[name]))), one_line(ValueError(repr(value)))
            raise InputError(f"{file} contradicts itself ({name} is {seen}, but its identity says {stated}): {HINT}")
    content = {name: value for name, value in manifest.items() if name != "digest"}
    if manifest["format"] >= DIGESTS_SINCE and manifest.get("digest") != digest_json(content):
        raise InputError(f"{file} was changed after it was written (its digest does not match): {HINT}")
