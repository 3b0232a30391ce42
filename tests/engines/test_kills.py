"""Ten runs that are killed at random moments resume to the rows of a run that was not interrupted."""

import signal
import time
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from command_line import ENVIRONMENT, Command
from nodes import start_nodes
from run_folders import command, content, temporary_files

from marginattack.storage.run_folder import RunFolder

SAMPLES = 64


def finish(process: Command) -> None:
    result = process.wait(200)
    assert result.returncode == 0, result.stderr


def kill_and_resume(folder: Path, signals: list[signal.Signals], environment: dict[str, str], *more: str) -> None:
    """Start a run, kill it once it has measured a shard, and so on; then let it finish."""
    run, random = folder / "run", Random(0)
    arguments = command(folder, run, *more, model="slow", n=SAMPLES)
    shards = 0
    for number in signals:
        process = Command(arguments, {**ENVIRONMENT, **environment})
        while len(list(run.glob("margins/*/*.parquet"))) == shards:
            assert process.poll() is None, process.wait().stderr
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.15))
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(number)
        result = process.wait(60)
        if number == SIGINT:
            assert result.returncode == 130
            assert result.stderr.splitlines()[-1] == "marginattack: Interrupted. Run the same command again to resume."
            assert temporary_files(run) == []
        else:
            assert result.returncode != 0
        files = list(run.glob("margins/*/*.parquet"))
        assert all(file.read_bytes()[-4:] == b"PAR1" for file in run.glob("*/*/*.parquet"))  # complete
        assert len(files) > shards
        shards = len(files)
    finish(Command(arguments, {**ENVIRONMENT, **environment}))
    assert len(RunFolder(run).manifest["sessions"]) == len(signals) + 1
    assert temporary_files(run) == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """The rows of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("complete")
    finish(Command(command(folder, folder / "run", n=SAMPLES)))
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
