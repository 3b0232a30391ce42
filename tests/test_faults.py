"""Whatever interrupts a measurement leaves complete shards only, and the same command resumes it: on the real CLI."""

import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from run_folders import ENVIRONMENT, call, command, content, temporary_files

from marginattack.storage.run_folder import RunFolder


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("complete")
    result = call(command(folder, folder / "run"))
    assert result.returncode == 0, result.stderr
    return folder / "run"


def test_run_killed_ten_times_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    arguments, random = command(tmp_path, tmp_path / "run", model="slow"), Random(0)
    began, kills, progress = time.monotonic(), 0, set()
    while kills < 10:
        process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finished = len(list(tmp_path.glob("run/margins/*/*.parquet")))
        while len(list(tmp_path.glob("run/margins/*/*.parquet"))) == finished and process.poll() is None:
            time.sleep(0.01)  # until the first new shard: then at a random moment
        time.sleep(random.uniform(0.0, 0.4))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
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
    result = call(command(tmp_path, tmp_path / "other", model="slow"))
    assert result.returncode == 0, result.stderr
    assert content(tmp_path / "run") == content(tmp_path / "other")
    assert temporary_files(tmp_path / "run") == []
    ids = RunFolder(tmp_path / "run").table(["norm", "id"]).to_pydict()
    assert sorted(zip(ids["norm"], ids["id"], strict=True)) == [(n, i) for n in ("l2", "linf") for i in range(64)]


CRASH = """
import os, sys
left = int(sys.argv.pop(1))
def replace(source, target, real=os.replace):
    global left
    left -= 1
    if left < 0:
        os._exit(137)
    real(source, target)
os.replace = replace
from marginattack.cli import app
app()
"""


@pytest.mark.parametrize("writes", [0, 2, 3, 30])
def test_crash_before_a_rename_loses_nothing(complete: Path, tmp_path: Path, writes: int) -> None:
    arguments = command(complete.parent, tmp_path / "run")
    crash = [sys.executable, "-c", CRASH, str(writes), *arguments[3:]]
    assert call(crash).returncode == 137
    assert call(arguments).returncode == 0
    assert content(tmp_path / "run") == content(complete)
    assert temporary_files(tmp_path / "run") == []


def test_interrupt_ends_with_130_and_the_run_resumes(complete: Path, tmp_path: Path) -> None:
    arguments = command(complete.parent, tmp_path / "run", model="slow")
    process = subprocess.Popen(arguments, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("run/margins/*/*.parquet")):
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "marginattack: Interrupted. Run the same command again to resume.\n"
    assert temporary_files(tmp_path / "run") == []
    assert call(arguments).returncode == 0


def test_full_disk_is_one_line_and_the_run_resumes(complete: Path, tmp_path: Path) -> None:
    arguments = command(complete.parent, tmp_path / "run")
    limit = 9_000  # bytes per file: the manifest and the margins fit, the images do not

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    result = call(arguments, preexec_fn=small_files)
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
    first = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
