"""Whatever interrupts a measurement leaves complete shards only, and the same command resumes it: on the real CLI."""

import os
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_line import ENVIRONMENT, Command
from faults import crash_before_rename, limit_file_size
from run_folders import call, command, content, data, temporary_files
from run_models import TRAPPED
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.storage.run_folder import RunFolder


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("complete")
    result = call(command(folder, folder / "run"))
    assert result.returncode == 0, result.stderr
    return folder / "run"


@pytest.mark.parametrize("writes", [0, 2, 3, 30])
def test_crash_before_a_rename_loses_nothing(complete: Path, tmp_path: Path, writes: int) -> None:
    arguments = command(complete.parent, tmp_path / "run")
    assert call(arguments, first=partial(crash_before_rename, writes)).returncode == 137
    assert call(arguments).returncode == 0
    assert content(tmp_path / "run") == content(complete)
    assert temporary_files(tmp_path / "run") == []


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


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run of four shards; on sample 20, in shard 2, the model fails or hangs while it is measured."""
    arrays = dict(np.load(data(tmp_path / "all.npz", 32)))
    arrays["x"][20, 0, 0, 0] = TRAPPED
    np.savez(tmp_path / "data-32.npz", **arrays)
    monkeypatch.setenv("TRAP", str(tmp_path / "run/manifest.json"))
    monkeypatch.setenv("SESSION", "1")
    arguments = command(tmp_path, tmp_path / "run", "--batch", "4", model="trapped", n=32)
    position = arguments.index("linf")
    return [*arguments[: position - 1], *arguments[position + 1 :]]


def test_error_in_the_model_is_one_line_and_the_run_resumes(
    trap: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*trap[3:], "--shard", "11"]  # the sample is not among the first, on which the model is tried
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr == (
        "marginattack: the model fails on sample 20 (batch: samples 19 to 21, shape (3, 3, 6, 6)): "
        "RuntimeError: no kernel for these pixels; finished shards are kept; run the same command again to resume\n"
    )
    assert len(list(tmp_path.glob("run/margins/*/*.parquet"))) == 1
    monkeypatch.setenv("TRAP", "disarmed")
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_shard_that_hangs_is_named_tried_last_and_then_left_out(
    trap: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session, finished in ((1, 2), (2, 3)):
        marks = {"TRAP": os.environ["TRAP"], "SESSION": str(session), "HANG": "1"}
        result = call([*trap, "--shard-timeout", "4"], env={**ENVIRONMENT, **marks})
        assert result.returncode == 2
        assert result.stderr == (
            "marginattack: the model hangs on samples 16 to 23 (marginattack l2, shard 2): no result within 4 s "
            "(--shard-timeout); finished shards are kept; run the same command again to resume\n"
        )
        assert len(list(tmp_path.glob("run/margins/*/*.parquet"))) == finished
    monkeypatch.setenv("SESSION", "4")
    last = CliRunner().invoke(app, trap[3:])
    assert last.exit_code == 1
    named = "grave: shards-set-aside (8 of 32): shards failed repeatedly: marginattack l2 shard 2, samples 16 to 23 (no"
    assert named in last.stderr
    assert RunFolder(tmp_path / "run").manifest["failed_shards"][0]["ids"] == [*range(16, 24)]
    assert CliRunner().invoke(app, trap[3:]).exit_code == 2  # it is tried again, and fails instead


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
    result = call(command(complete.parent, run))
    assert result.returncode == 0
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
