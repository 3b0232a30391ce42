"""Whatever interrupts a measurement leaves complete shards only, and the same command resumes it: on the real CLI."""

import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Command
from faults import crash_before_rename, limit_file_size
from run_folders import call, command, content, temporary_files

from marginattack.storage.run_folder import RunFolder


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("complete")
    result = call(command(folder, folder / "run"))
    assert result.returncode == 0, result.stderr
    return folder / "run"


def test_run_killed_ten_times_equals_an_uninterrupted_one(complete: Path, tmp_path: Path) -> None:
    arguments, random = command(complete.parent, tmp_path / "run", model="slow"), Random(0)
    began, kills, progress = time.monotonic(), 0, set()
    while kills < 10:
        process = Command(arguments)
        finished = len(list(tmp_path.glob("run/margins/*/*.parquet")))
        while len(list(tmp_path.glob("run/margins/*/*.parquet"))) == finished and process.poll() is None:
            time.sleep(0.01)  # until the first new shard: then at a random moment
        time.sleep(random.uniform(0.0, 0.4))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        progress.add(len(list(tmp_path.glob("run/margins/*/*.parquet"))))
        for file in tmp_path.glob("run/*/*/*.parquet"):
            assert file.read_bytes()[-4:] == b"PAR1"  # complete
        assert time.monotonic() - began < 400
    assert kills == 10
    assert len(progress) > 5
    result = call(arguments)
    assert result.returncode == 0, result.stderr
    assert content(tmp_path / "run") == content(complete)
    assert temporary_files(tmp_path / "run") == []
    ids = RunFolder(tmp_path / "run").table(["norm", "id"]).to_pydict()
    assert sorted(zip(ids["norm"], ids["id"], strict=True)) == [(n, i) for n in ("l2", "linf") for i in range(64)]


@pytest.mark.parametrize("writes", [0, 2, 3, 30])
def test_crash_before_a_rename_loses_nothing(complete: Path, tmp_path: Path, writes: int) -> None:
    arguments = command(complete.parent, tmp_path / "run")
    assert call(arguments, first=partial(crash_before_rename, writes)).returncode == 137
    assert call(arguments).returncode == 0
    assert content(tmp_path / "run") == content(complete)
    assert temporary_files(tmp_path / "run") == []


def test_interrupt_ends_with_130_and_the_run_resumes(complete: Path, tmp_path: Path) -> None:
    arguments = command(complete.parent, tmp_path / "run", model="slow", n=24)
    process = Command(arguments)
    while not list(tmp_path.glob("run/margins/*/*.parquet")):
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    result = process.wait(60)
    assert result.returncode == 130
    assert result.stderr == "marginattack: Interrupted. Run the same command again to resume.\n"
    assert temporary_files(tmp_path / "run") == []
    assert call(arguments).returncode == 0


def test_full_disk_is_one_line_and_the_run_resumes(complete: Path, tmp_path: Path) -> None:
    arguments = command(complete.parent, tmp_path / "run")
    # The manifest and the margins fit, the images do not.
    result = call(arguments, first=partial(limit_file_size, 9_000))
    assert result.returncode == 2
    assert result.stderr.startswith("marginattack: the disk is full: File too large. Finished results are kept")
    assert result.stderr.count("\n") == 1
    assert temporary_files(tmp_path / "run") == []
    assert call(arguments).returncode == 0
    assert content(tmp_path / "run") == content(complete)


def test_out_of_memory_halves_the_batch_and_loses_nothing(complete: Path, tmp_path: Path) -> None:
    options = ("--batch", "64", "--set", "shard=64", "--lattice", "255")
    result = call(command(complete.parent, tmp_path / "run", *options, model="hungry"))
    assert result.returncode == 0, result.stderr
    found, expected = (RunFolder(run).table() for run in (tmp_path / "run", complete))
    for name in ("id", "input", "label", "success", "forwards"):
        order = [("norm", "ascending"), ("id", "ascending")]
        assert found.sort_by(order).column(name).to_pylist() == expected.sort_by(order).column(name).to_pylist()


def test_second_process_on_a_folder_is_refused(complete: Path, tmp_path: Path) -> None:
    arguments = command(complete.parent, tmp_path / "run", model="slow")
    first = Command(arguments)
    while not (tmp_path / "run" / "manifest.json").exists():
        time.sleep(0.01)
    second = call(arguments)
    assert first.poll() is None, "the first ended too early for the test to mean anything"
    first.kill()
    first.wait()
    assert second.returncode == 2
    assert (
        second.stderr
        == f"marginattack: {tmp_path / 'run'} is in use by another process: wait for it to end, or give another --out\n"
    )


def test_finished_run_is_verified_again_and_not_changed(complete: Path) -> None:
    before = content(complete)
    result = call(command(complete.parent, complete))
    assert result.returncode == 0
    assert content(complete) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--seed", "1"], "seed was 0, is 1"),
        (["--budget", "9"], "budget was null, is 9"),
        (["--set", "attack.marginattack.moves=21"], "attacks.marginattack was"),
        (["--limit", "10"], "limit was null, is 10"),
        (["--norm", "l1"], "norms was"),
        (["--model", f"{Path(__file__).parent / 'run_models.py'}:other"], "model.digest was"),
        (["--model", f"{Path(__file__).parent / 'run_models.py'}:slow"], "model.digest was"),  # the same weights
        (["--normalize", "0.5/0.5"], "model.preprocessing"),
    ],
)
def test_changed_setting_is_refused_by_name(complete: Path, change: list[str], named: str) -> None:
    before = content(complete)
    result = call(command(complete.parent, complete, *change))
    assert result.returncode == 2
    assert named in result.stderr
    assert result.stderr.count("\n") == 1
    assert content(complete) == before


def test_lost_images_are_computed_again(complete: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(complete, run)
    (run / "images/marginattack-l2/part-00003.parquet").unlink()
    assert call(command(complete.parent, run)).returncode == 0
    assert content(run) == content(complete)


def test_resumed_run_keeps_its_batch_size(complete: Path, tmp_path: Path) -> None:
    arguments = [word for word in command(complete.parent, tmp_path / "run") if word not in ("--batch", "8")]
    assert call(arguments).returncode == 0
    (tmp_path / "run/margins/marginattack-linf/part-00007.parquet").unlink()
    before = content(tmp_path / "run")
    assert call(arguments).returncode == 0
    after = content(tmp_path / "run")
    assert before.items() <= after.items()
    first, second = RunFolder(tmp_path / "run").manifest["sessions"]
    assert first["batch"] == second["batch"]


@pytest.mark.parametrize("column", ["distance", "prediction", "input"])
def test_modified_row_is_found(complete: Path, tmp_path: Path, column: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(complete, run)
    file = run / "margins/marginattack-l2/part-00003.parquet"
    table = pq.ParquetFile(file).read()
    values = table.column(column).to_pylist()
    change: dict[str, Callable[[Any], Any]] = {
        "distance": lambda d: 0.9 * d, "prediction": lambda k: (k + 1) % 4, "input": lambda text: text[::-1],
    }  # fmt: skip
    values[1] = change[column](values[1])
    where = table.schema.get_field_index(column)
    pq.write_table(table.set_column(where, table.schema.field(column), pa.array(values)), file)
    result = call(command(complete.parent, run))
    assert result.returncode == 1
    assert "grave: stored-rows-fail (1 of 128)" in result.stderr
