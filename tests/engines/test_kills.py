"""Ten runs that are killed at random moments resume to the rows of a run that was not interrupted."""

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from nodes import start_nodes
from run_folders import command, content, temporary_files

from marginattack.storage.run_folder import RunFolder

SAMPLES = 64
FORKS = multiprocessing.get_context("forkserver")  # which imports torch once
FORKS.set_forkserver_preload(["marginattack.cli", "marginattack.runs.run", "marginattack.report.text"])


def main(arguments: list[str], environment: dict[str, str], errors: Path) -> None:
    """The command line, in a new process."""
    import torch

    from marginattack.cli import app

    os.environ.update(environment)
    signal.signal(SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    app(arguments)


def start(arguments: list[str], environment: dict[str, str], errors: Path) -> BaseProcess:
    process = FORKS.Process(target=main, args=(arguments[3:], environment, errors))
    process.start()
    return process


def finish(arguments: list[str], environment: dict[str, str], errors: Path) -> None:
    process = start(arguments, environment, errors)
    process.join(200)
    assert process.exitcode == 0, errors.read_text()


def kill_and_resume(folder: Path, signals: list[signal.Signals], environment: dict[str, str], *more: str) -> None:
    """Start a run, kill it once it has measured a shard, and so on; then let it finish."""
    run, errors, random = folder / "run", folder / "errors", Random(0)
    arguments = command(folder, run, *more, model="slow", n=SAMPLES)
    shards = 0
    for number in signals:
        process = start(arguments, environment, errors)
        while len(list(run.glob("margins/*/*.parquet"))) == shards:
            assert process.is_alive(), errors.read_text()
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.15))
        assert process.is_alive(), "it ended before it could be killed"
        os.kill(process.pid or 0, number)
        process.join(60)
        if number == SIGINT:
            assert process.exitcode == 130
            assert errors.read_text() == "marginattack: Interrupted. Run the same command again to resume.\n"
            assert temporary_files(run) == []
        else:
            assert process.exitcode != 0
        files = list(run.glob("margins/*/*.parquet"))
        assert all(file.read_bytes()[-4:] == b"PAR1" for file in run.glob("*/*/*.parquet"))  # complete
        assert len(files) > shards
        shards = len(files)
    finish(arguments, environment, errors)
    assert len(RunFolder(run).manifest["sessions"]) == len(signals) + 1
    assert temporary_files(run) == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """The rows of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("complete")
    finish(command(folder, folder / "run", n=SAMPLES), {}, folder / "errors")
    return content(folder / "run")


def test_seven_kills_of_a_serial_run(tmp_path: Path, expected: dict[str, dict[str, object]]) -> None:
    kill_and_resume(tmp_path, [SIGKILL, SIGTERM, SIGINT, SIGKILL, SIGINT, SIGTERM, SIGKILL], {})
    assert content(tmp_path / "run") == expected


def test_three_kills_of_a_driver_whose_cluster_survives(tmp_path: Path, expected: dict[str, dict[str, object]]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'marginattack[ray]'")
    with start_nodes(1) as (cluster, environment):
        ray = ("--engine", "ray", "--workers", "1", "--address", cluster["address"])
        kill_and_resume(tmp_path, [SIGKILL, SIGTERM, SIGINT], environment, *ray)
    assert content(tmp_path / "run") == expected
