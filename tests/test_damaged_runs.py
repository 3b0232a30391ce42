"""Damaged manifests, metadata, columns and findings are one line each, also in a format without digests."""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import marginattack as ma
from marginattack.report.sections import collect_findings, describe_runs
from marginattack.report.text import format_run
from marginattack.storage.run_folder import RunFolder

SOURCE = Path(__file__).parent / "data/run-format-2"
MANIFEST = json.loads((SOURCE / "manifest.json").read_text())
SHARD = "margins/race-l2/part-00001.parquet"
MISSING = object()
VALUES: tuple[Any, ...] = (MISSING, None, True, "../..", -1, 7, 10**12, [], {})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(SOURCE, tmp_path / "run")


def read(run: Path) -> str:
    """Report on a run and load it: the error, which is one line, or else the number of rows."""
    try:
        folder = RunFolder(run)
        format_run(folder)
        describe_runs([folder])
        collect_findings([folder])
        margins = ma.Margins.load(run)
        message = f"{len(margins)} rows of {tuple(margins.adversarial.shape[1:])}"
    except ma.InputError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 700
    return message


WHOLE = "3 rows of (1, 28, 28)"


def paths(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON document."""
    if path:
        yield path
    if path == ("settings",):  # shown as they are
        return
    for key, below in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from paths(below, (*path, key))


def change(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a JSON document with another value at one place, or without it."""
    tree = deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]
    if value is MISSING:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return tree


# what a reader does not rely on may have any value
FREE = {
    "versions", "marginattack", "seed", "search", "graphs", "compiled", "at", "preprocessing", "settings", "sessions",
    "failed_shards", "verified", "finished", "torch", "classes",
    "only_correct", "budget", "lattice", "target",  # other values may fit these rows, too
}  # fmt: skip
TEXTS = ("name", "began", "host", "hardware", "command", "started")


@pytest.mark.parametrize("name", MANIFEST)
def test_damaged_manifest_is_one_line(run: Path, name: str) -> None:
    for path in paths({name: MANIFEST[name]}):
        for value in VALUES:
            changed = change(MANIFEST, path, value)
            (run / "manifest.json").write_text(json.dumps(changed))
            message = read(run)
            if message == WHOLE:
                same = value is not MISSING and changed == MANIFEST
                named = isinstance(value, str) and path[-1] in (
                    "name",
                    "began",
                    "host",
                    "hardware",
                    "command",
                    "started",
                )
                batch = path[-1] == "batch" and isinstance(value, int) and value > 0
                assert same or named or batch or FREE & set(path), (path, value)
            else:
                assert message.startswith(str(run)), (path, value, message)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\ufeff{}", '{"format": NaN}', '{"format": [2]}'])
def test_manifest_that_is_none_is_one_line(run: Path, text: str) -> None:
    (run / "manifest.json").write_text(text)
    assert read(run).startswith(str(run))


def test_sizes_that_do_not_fit_are_named(run: Path) -> None:
    """A trillion samples hung, and shards of 7 gave 99 rows for 60 samples."""
    for name, value in (("samples", 10**12), ("samples", 2), ("shard", 7)):
        (run / "manifest.json").write_text(json.dumps({**MANIFEST, name: value}))
        expected = f"manifest.json contradicts itself ({name} is {value}, but its identity says {MANIFEST[name]})"
        assert expected in read(run)
    everywhere = change({**MANIFEST, "shard": 7}, ("identity", "shard"), 7)
    (run / "manifest.json").write_text(json.dumps(everywhere))
    assert "part-00001.parquet is not a shard of this run" in read(run)
    huge = {**change(everywhere, ("identity", "limit"), 10**12), "samples": 10**12}
    for field in ("data", "identity"):
        huge = change(huge, ("data", "n") if field == "data" else ("identity", "data", "n"), 10**12)
    (run / "manifest.json").write_text(json.dumps(huge))
    assert "part-00000.parquet has 2 rows, not 7" in read(run)


def rewrite(file: Path, table: pa.Table, about: Any = None) -> None:
    about = about if about is not None else table.schema.metadata
    pq.write_table(table.replace_schema_metadata(about), file)


COLUMNS = pq.ParquetFile(SOURCE / SHARD).schema_arrow.names
IMPOSSIBLE: dict[str, list[Any]] = {
    "id": [-1, 0, 10**12], "label": [-1, 2**40], "prediction": [-1, 2**40], "confidence": [-0.1, 1.5, float("nan")],
    "target": [-2, 3], "adversarial_label": [-1, 2**40], "distance": [-1.0, float("nan")], "forwards": [-1, 41],
    "backwards": [-1, 10**12], "attack": ["pgd"], "norm": ["linf"],
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_damaged_column_is_one_line(run: Path, name: str) -> None:
    table = pq.ParquetFile(run / SHARD).read()
    where, n = table.schema.get_field_index(name), len(table)
    rewrite(run / SHARD, table.drop_columns([name]))
    assert f"part-00001.parquet has no column {name}" in read(run)
    for kind in (pa.float32(), pa.string(), pa.list_(pa.int64()), pa.bool_(), pa.binary()):
        if kind != table.schema.field(name).type:
            rewrite(run / SHARD, table.set_column(where, name, pa.nulls(n, kind)))
            assert f"part-00001.parquet has no column {name}" in read(run)
    rewrite(run / SHARD, table.set_column(where, name, pa.nulls(n, table.schema.field(name).type)))
    assert f"part-00001.parquet has empty cells in column {name}" in read(run)
    for value in IMPOSSIBLE.get(name, []):
        column = pa.array([value] * n, table.schema.field(name).type)
        rewrite(run / SHARD, table.set_column(where, name, column))
        assert "part-00001.parquet " in read(run), value


@pytest.mark.parametrize("kind", ["margins", "images"])
def test_damaged_metadata_are_one_line(run: Path, kind: str) -> None:
    file = run / SHARD.replace("margins", kind)
    table = pq.ParquetFile(file).read()
    about = json.loads(table.schema.metadata[b"marginattack"])
    for text in ("", "{", "[]", "[" * 100_000, b"\xff"):
        rewrite(file, table, {"marginattack": text})
        assert "part-00001.parquet " in read(run), text[:9]
    for name in about:
        for value in VALUES:
            changed = change(about, (name,), value)
            rewrite(file, table, {"marginattack": json.dumps(changed)})
            assert ("part-00001.parquet " in read(run)) == (changed != about or value is True), (name, value)
    rewrite(file, table.slice(0, 0))
    assert "part-00001.parquet " in read(run)


@pytest.mark.parametrize("name", ["original", "adversarial", "id"])
def test_damaged_images_are_one_line(run: Path, name: str) -> None:
    file = run / SHARD.replace("margins", "images")
    table = pq.ParquetFile(file).read()
    where, n = table.schema.get_field_index(name), len(table)
    rewrite(file, table.drop_columns([name]))
    assert f"part-00001.parquet has no column {name}" in read(run)
    for kind in (pa.float32(), pa.string(), pa.list_(pa.float32()), pa.list_(pa.float32(), 3)):
        rewrite(file, table.set_column(where, name, pa.nulls(n, kind)))
        assert f"part-00001.parquet has no column {name}" in read(run)


@pytest.mark.parametrize("text", ["", "{", "{}", "[3]", '[{"code": 1}]', "[" * 100_000, '[{"grade": "grave"}]'])
def test_damaged_findings_are_one_line(run: Path, text: str) -> None:
    (run / "findings.json").write_text(text)
    assert "findings.json is damaged" in read(run)


def test_undamaged_run_is_read(run: Path) -> None:
    assert read(run) == WHOLE
