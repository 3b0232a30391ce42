"""What was changed in a run folder or a margins file is named in one line, wherever it is read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from run_folders import command
from typer.testing import CliRunner, Result

import marginattack as ma
from marginattack.cli import app
from marginattack.report.text import summarize_run
from marginattack.storage.parquet import read_metadata, write_table
from marginattack.storage.run_folder import Part, RunFolder

PART = Part("marginattack", "l2")
MARGINS, IMAGES = (f"{kind}/{PART.name}/part-00001.parquet" for kind in ("margins", "images"))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two norms of 24 samples in shards of eight."""
    folder = tmp_path_factory.mktemp("complete")
    result = measure(folder, folder / "run")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture
def run(complete: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    shutil.copytree(complete, tmp_path / "run")
    return tmp_path / "run"


def measure(folder: Path, out: Path) -> Result:
    return CliRunner().invoke(app, command(folder, out, "--set", "attack.marginattack.moves=4", n=24)[3:])


# --- ways to read a run -----------------------------------------------------------------------------------------------


def resume(run: Path) -> None:
    identity = json.loads((run / "manifest.json").read_text())["identity"]
    RunFolder.create_or_resume(run, identity, {}).begin_session()


def report(run: Path) -> None:
    summarize_run(RunFolder(run))


def load(run: Path) -> None:
    ma.Margins.load(run, norm="l2")


def verify(run: Path) -> None:
    folder = RunFolder(run)
    for shard, part in folder.finished():
        folder.images(part, shard)


def problem(read: Callable[[Path], None], run: Path) -> str:
    """The error of a reader, which is one line; empty if there is none."""
    message = ""
    try:
        read(run)
    except ma.InputError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 600
    return message


# --- ways to change one -----------------------------------------------------------------------------------------------


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a Parquet file as other programs do: they keep the metadata."""
    table = pq.ParquetFile(file).read()
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), file)


def edit(column: str, value: Any) -> Callable[[Path], None]:
    """Set one cell of a column."""

    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        values[1] = value
        where = table.schema.get_field_index(column)
        return table.set_column(where, table.schema.field(column), pa.array(values, table.schema.field(column).type))

    return lambda run: rewrite(run / MARGINS, change)


def copy(source: str, target: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / target).parent.mkdir(exist_ok=True)
        shutil.copy(run / source, run / target)

    return change


def copy_shard(run: Path) -> None:
    for name in (MARGINS, IMAGES):
        shutil.copy(run / name.replace("00001", "00000"), run / name)


def foreign_shard(run: Path) -> None:
    """A shard of a run with another seed."""
    folder, other = RunFolder(run), run.parent / "other"
    other.mkdir()
    about = {k: v for k, v in folder.manifest.items() if k not in ("identity", "digest", "digests", "files")}
    commit(RunFolder.create_or_resume(other, {**folder.manifest["identity"], "seed": 1}, about), folder)
    for name in (MARGINS, IMAGES):
        shutil.copy(other / name, run / name)


def commit(target: RunFolder, source: RunFolder, **changes: Any) -> None:
    """Write the shard again, with digests, after changes of single cells."""
    table = source.read(PART, 1)
    columns = {name: table.column(name).to_pylist() for name in table.column_names if name not in ("attack", "norm")}
    for name, value in changes.items():
        columns[name][1] = value
    images = {name: column for name, column in source.images(PART, 1).items() if name != "id"}
    counts = {name: read_metadata(table)[name] for name in ("seen", "right")}
    target.commit(PART, 1, columns, images, counts)


def recommit(**changes: Any) -> Callable[[Path], None]:
    return lambda run: commit(RunFolder(run), RunFolder(run), **changes)


def strip_metadata(run: Path) -> None:
    table = pq.ParquetFile(run / MARGINS).read()
    pq.write_table(table.replace_schema_metadata(None), run / MARGINS)


def edit_image(run: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        values = table.column("adversarial").to_pylist()
        values[0][0] += 1e-3
        where = table.schema.get_field_index("adversarial")
        return table.set_column(
            where, table.schema.field("adversarial"), pa.array(values, table.schema.field(where).type)
        )

    rewrite(run / IMAGES, change)


def edit_json(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        content = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(change(content)))

    return edit


def truncate(name: str) -> Callable[[Path], Any]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-40])


ROWS, DIGEST = (resume, report, load, verify), "do not match their digest"
TAMPERED: dict[str, tuple[Callable[[Path], Any], tuple[Callable[[Path], None], ...], str]] = {
    "shard copied over another": (copy_shard, ROWS, "says that it is shard 0, not 1"),
    "shard of another norm": (copy(MARGINS.replace("l2", "linf"), MARGINS), ROWS, "says that it is part"),
    "foreign shard": (foreign_shard, ROWS, "belongs to another run"),
    "missing shard": (lambda run: (run / MARGINS).unlink(), (report, load), "is missing, but manifest.json records it"),
    "doubled shard": (copy(MARGINS, MARGINS.replace("00001", "00077")), ROWS, "is not a shard of this run"),
    "copy beside a shard": (copy(MARGINS, MARGINS.replace(".p", "-copy.p")), ROWS, "is not a shard of this run"),
    "shard under two names": (copy(MARGINS, MARGINS.replace("00001", "000001")), ROWS, "is not a shard of this run"),
    "copied folder": (copy(MARGINS, MARGINS.replace("l2", "l2-copy")), ROWS, "is not a shard of this run"),
    "cut rows": (lambda run: rewrite(run / MARGINS, lambda table: table.slice(0, 5)), ROWS, DIGEST),
    "reordered rows": (lambda run: rewrite(run / MARGINS, lambda t: t.take([1, 0, *range(2, 8)])), ROWS, DIGEST),
    "extra column": (lambda r: rewrite(r / MARGINS, lambda t: t.append_column("x", t.column("id"))), ROWS, DIGEST),
    "distance": (edit("distance", 0.5), ROWS, DIGEST),
    "label": (edit("label", 3), ROWS, DIGEST),
    "prediction": (edit("prediction", 3), ROWS, DIGEST),
    "confidence": (edit("confidence", 0.5), ROWS, DIGEST),
    "norm": (edit("norm", "linf"), ROWS, DIGEST),
    "passes": (edit("backwards", 12345), ROWS, DIGEST),
    "input": (edit("input", "0" * 16), ROWS, DIGEST),
    "no metadata": (strip_metadata, ROWS, "has no digest"),
    "truncated margins": (truncate(MARGINS), ROWS, "is damaged"),
    "empty margins": (lambda run: (run / MARGINS).write_bytes(b""), ROWS, "is damaged"),
    "other rows with digests": (recommit(confidence=0.5), ROWS, "is not the shard that manifest.json records"),
    "edited image": (edit_image, (load, verify), DIGEST),
    "images of another shard": (copy(IMAGES.replace("1.p", "2.p"), IMAGES), (load, verify), "says that it is shard 2"),
    "truncated images": (truncate(IMAGES), (load, verify), "is damaged"),
    "missing images": (lambda run: (run / IMAGES).unlink(), (load,), "is missing: copy the complete run folder"),
    "edited manifest": (edit_json("manifest.json", lambda m: {**m, "verified": None}), ROWS, "digest does not match"),
    "removed findings": (lambda run: (run / "findings.json").unlink(), (report,), "was changed or removed after it"),
    "edited findings": (edit_json("findings.json", lambda found: []), (report,), "was changed or removed after it"),
}  # fmt: skip


@pytest.mark.parametrize("case", TAMPERED)
def test_tampered_run_is_named_wherever_it_is_read(run: Path, case: str) -> None:
    tamper, readers, expected = TAMPERED[case]
    tamper(run)
    for read in readers:
        message = problem(read, run)
        assert expected in message, read.__name__
        assert str(run) in message


def test_untouched_run_is_read_without_an_error(run: Path) -> None:
    assert [problem(read, run) for read in ROWS] == [""] * 4


@pytest.mark.parametrize("changes", [{}, {"confidence": 0.25}, {"id": 3}, {"label": -1}, {"backwards": -2}], ids=str)
def test_shard_that_is_not_recorded_yet_counts_if_it_keeps_the_contract(run: Path, changes: dict[str, Any]) -> None:
    """As after a kill between the commit of a shard and the end of its session."""
    folder = RunFolder(run)
    folder.update_manifest(digests={})
    commit(folder, folder, **changes)
    message = problem(resume, run)
    if changes.keys() <= {"confidence"}:
        assert message == ""
        assert RunFolder(run).pending() == []
    else:
        assert f"{run / MARGINS} {'counts' if 'label' in changes else 'has'} " in message
    rewrite(run / MARGINS, lambda table: table.slice(0, 5))
    assert DIGEST in problem(resume, run)


def test_command_line_names_a_tampered_shard_and_measures_a_lost_one_again(complete: Path, run: Path) -> None:
    copy_shard(run)
    for arguments in (["report", str(run), "--text"], ["compare", str(run), str(complete)]):
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert f"{run / MARGINS} says that it is shard 0, not 1" in result.stderr
    result = measure(complete.parent, run)
    assert result.exit_code == 2
    assert f"{run / MARGINS} says that it is shard 0, not 1: delete it and run the same" in result.stderr
    (run / MARGINS).unlink()
    result = measure(complete.parent, run)
    assert result.exit_code == 0, result.stderr
    assert f"note: shards-lost (8 of 48): finished shards were gone: {run / MARGINS}" in result.stderr
    for field in ("distance", "adversarial"):
        assert getattr(ma.Margins.load(run, norm="l2"), field).equal(
            getattr(ma.Margins.load(complete, norm="l2"), field)
        )
    assert RunFolder(run).manifest["digests"] == RunFolder(complete).manifest["digests"]


def test_rows_with_digests_of_their_own_must_hold_on_the_model(complete: Path, run: Path) -> None:
    """Digests do not protect against somebody who computes them again; the verification does, where it can."""
    folder = RunFolder(run)
    table = folder.read(PART, 1)
    label, distance = (table.column(name).to_pylist() for name in ("label", "distance"))
    changes = {"distance": 0.9 * distance[1], "prediction": 3 - label[1], "confidence": 0.1, "input": "0" * 16}
    for name, value in changes.items():
        folder.update_manifest(digests={})
        commit(folder, RunFolder(complete), **{name: value})
        if name == "prediction":
            assert "counts" in problem(resume, run)
            continue
        result = measure(complete.parent, run)
        assert result.exit_code == 1, name
        assert "grave: stored-rows-fail (1 of 48)" in result.stderr


# --- margins files ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def margins() -> ma.Margins:
    logits, attack = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), ma.MarginAttack(moves=2)
    return ma.measure(torch.nn.Identity(), logits, torch.tensor([0, 0]), norm="l2", attack=attack)


def test_edited_margins_file_is_named(margins: ma.Margins, tmp_path: Path) -> None:
    file = tmp_path / "margins.parquet"
    margins.save(file)
    assert problem(load, file) == ""
    rewrite(file, lambda table: table.slice(0, 1))
    assert DIGEST in problem(load, file)
    margins.save(file)
    table = pq.ParquetFile(file).read()
    about = read_metadata(table)
    without = {name: value for name, value in about.items() if name != "digest"}
    for changed, expected in (({**about, "norm": "linf"}, DIGEST), (without, "it has no digest")):
        pq.write_table(table.replace_schema_metadata({"marginattack": json.dumps(changed)}), file)
        assert expected in problem(load, file)


BAD: dict[str, list[Any]] = {
    "format": ["4", None],
    "norm": [None, 3],
    "shape": [None, "3", [-1], [10**12], ["x"]],
    "settings": [7],
}


@pytest.mark.parametrize("field", BAD)
def test_damaged_metadata_of_a_margins_file_are_named(margins: ma.Margins, tmp_path: Path, field: str) -> None:
    file = tmp_path / "margins.parquet"
    margins.save(file)
    table = pq.ParquetFile(file).read()
    about = {name: value for name, value in read_metadata(table).items() if name not in ("digest", "groups")}
    for value in BAD[field]:
        write_table(file, table, {**about, field: value})
        assert problem(load, file).startswith(str(file)), value
    for column in set(table.column_names) - {"original"}:
        write_table(file, table.drop_columns([column]), about)
        assert f"has no column {column}" in problem(load, file)
    write_table(file, table.drop_columns(["original"]), about)
    assert ma.Margins.load(file).original is None  # as in files of older versions
