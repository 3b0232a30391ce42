"""The Ray engine on this machine gives the rows of the serial engine, whatever happens to its workers."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from cluster_models import POISON
from command_line import ENVIRONMENT, Command
from processes import alive, below, environment, listening
from run_folders import call, command, content, data, temporary_files

from marginattack.errors import InputError
from marginattack.runs.engines import ray_start, worker
from marginattack.runs.engines.ray import Cluster, WorkerPool, _last_line
from marginattack.runs.engines.worker import Worker
from marginattack.runs.job import open_job
from marginattack.runs.settings import Settings, read_settings
from marginattack.storage.run_folder import Part, RunFolder

pytest.importorskip("ray", reason="Ray is not installed: pip install 'marginattack[ray]'")

MODELS = Path(__file__).parent / "cluster_models.py"
RAY = ("--engine", "ray", "--workers", "2")


def on_cluster(folder: Path, out: Path, model: str, *more: str) -> list[str]:
    arguments = command(folder, out, *RAY, *more)
    arguments[arguments.index("--model") + 1] = f"{MODELS}:{model}"
    return arguments


def environ(**more: str) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(MODELS.parent), str(MODELS.parents[1]), *inherited])
    return {**ENVIRONMENT, "PYTHONPATH": path, **more}


def run(arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return call(arguments, environ(**more))


def test_lost_worker_and_failing_shard_cost_only_that_shard(tmp_path: Path) -> None:
    file = data(tmp_path / "data-64.npz")
    arrays = dict(np.load(file))
    arrays["x"][41, 0, 0, 0] = POISON  # in shard 5
    np.savez(file, **arrays)
    poisoned = tmp_path / "poisoned"
    poisoned.touch()
    marks = {"FRAGILE": str(tmp_path / "died"), "POISONED": str(poisoned)}
    arguments = on_cluster(tmp_path, tmp_path / "run", "fragile")
    result = run(arguments, **marks)
    assert result.returncode == 1, result.stderr
    assert (tmp_path / "died").exists()
    assert "grave: shards-set-aside (16 of 128)" in result.stderr
    assert "marginattack linf shard 5 (" in result.stderr
    assert "these pixels are poisoned" in result.stderr
    manifest = RunFolder(tmp_path / "run").manifest
    named = [(each["shard"], each["attack"], each["norm"]) for each in manifest["failed_shards"]]
    assert sorted(named) == [(5, "marginattack", "l2"), (5, "marginattack", "linf")]
    assert manifest["finished"] is None
    assert manifest["sessions"][-1]["retried"] == 5  # two shards twice, and what the dead worker had

    poisoned.unlink()
    result = run([word for word in arguments if word not in RAY], **marks)  # any engine resumes any folder
    assert result.returncode == 0, result.stderr
    assert call(command(tmp_path, tmp_path / "serial")).returncode == 0
    found, expected = content(tmp_path / "run"), content(tmp_path / "serial")
    assert found == expected
    assert temporary_files(tmp_path / "run") == []
    manifest = RunFolder(tmp_path / "run").manifest
    assert manifest["failed_shards"] == []
    assert manifest["verified"]["rows"] == 128
    assert manifest["verified"]["failed"] == 0


def test_interrupt_ends_with_130_and_leaves_no_process_and_all_is_on_loopback_with_a_token(tmp_path: Path) -> None:
    arguments = on_cluster(tmp_path, tmp_path / "run", "slow")
    elsewhere = environ(RAY_ADDRESS="127.0.0.1:1")  # Ray's own default is no --address
    process = Command(arguments, elsewhere)
    while not list(tmp_path.glob("run/margins/*/*.parquet")):
        time.sleep(0.02)
        assert process.poll() is None
    started = below(process.pid)
    raylets = [pid for pid in started if Path(f"/proc/{pid}/exe").readlink().name == "raylet"]
    assert len(raylets) == 1
    assert listening(started) == {"127.0.0.1"}
    inherited = environment(raylets[0])
    assert inherited["RAY_AUTH_MODE"] == "token"
    assert len(inherited["RAY_AUTH_TOKEN"]) == 64 or (Path.home() / ".ray/auth_token").exists()
    assert inherited["RAY_USAGE_STATS_ENABLED"] == "0"
    process.send_signal(signal.SIGINT)
    result = process.wait(60)
    assert result.returncode == 130
    assert result.stderr == "marginattack: Interrupted. Run the same command again to resume.\n"
    wait_until_ended(started)
    assert temporary_files(tmp_path / "run") == []
    shards = len(list(tmp_path.glob("run/margins/*/*.parquet")))
    assert 1 <= shards < 16


def wait_until_ended(started: set[int], seconds: float = 15) -> None:
    """Wait until all of these processes have ended."""
    until = time.monotonic() + seconds
    while started & alive().keys() and time.monotonic() < until:
        time.sleep(0.1)
    assert not started & alive().keys()


def test_worker_refuses_another_run_than_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a worker goes
    flags = {"model": f"{MODELS.parents[1] / 'run_models.py'}:small", "data": str(data(tmp_path / "data.npz", 8))}
    settings = read_settings(None, [], flags)
    job = open_job(settings)
    identity, about = job.identity(), {**job.about(), "started": "then"}
    (tmp_path / "run").mkdir()
    RunFolder.create_or_resume(tmp_path / "run", identity, about)
    there = str(tmp_path / "run")

    def open_worker(out: str, identity: dict[str, Any], started: str) -> Any:
        return Worker(settings.model_dump_json(), out, str(tmp_path), json.dumps(identity), started).open()

    assert open_worker(there, identity, "then")["pid"] == os.getpid()
    other = {**identity, "model": {**identity["model"], "digest": "0"}}
    with pytest.raises(InputError, match=r"cannot join: it opens another model or other data .model.digest was"):
        open_worker(there, other, "then")
    with pytest.raises(InputError, match=r"it does not see the run in .* .another run is there"):
        open_worker(there, identity, "now")
    with pytest.raises(InputError, match=r"it does not see the run in .*: give --out on a shared file system"):
        open_worker(str(tmp_path / "hidden"), identity, "then")

    late = Worker(settings.model_dump_json(), there, str(tmp_path), json.dumps(identity), "then")
    late.open()
    RunFolder(there).update_manifest(started="later")  # another driver found no shard and restarted the run
    with pytest.raises(InputError, match="was restarted by another process"):
        late.measure(0, Part("race", "l2"), 64)
    assert not list((tmp_path / "run").glob("margins/*/*"))

    def without_torchvision(settings: Settings) -> Any:
        raise ImportError("No module named torchvision")

    monkeypatch.setattr(worker, "open_job", without_torchvision)
    with pytest.raises(
        InputError, match=rf"the worker on {socket.gethostname()} cannot join: ImportError: No module named"
    ):
        open_worker(there, identity, "later")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--workers", "2"], "--workers 2 needs a Ray cluster: add --engine ray"),
        (["--engine", "slurm"], "no engine named 'slurm': choose from serial, ray"),
        (["--engine", "ray", "--gpus-per-worker", "1", "--device", "cpu"], "this machine has no GPU"),
        (["--engine", "ray", "--device", "cuda:1"], "cuda:1"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "at --address 127.0.0.1:1: [Errno 111] Connection refused"),
    ],
)
def test_contradictory_options_are_refused_in_one_line(tmp_path: Path, more: list[str], named: str) -> None:
    result = call(command(tmp_path, tmp_path / "run", *more))
    assert result.returncode == 2
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_more_gpus_than_the_machine_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(InputError, match="--gpus-per-worker 1 for 3 workers: this machine has 2 GPUs; share a GPU"):
        ray_start._start_cluster(None, "", 3, None, None)


@pytest.mark.parametrize(("gpus", "device"), [(1.0, "cuda"), (0.0, "cpu")])
def test_workers_use_the_device_that_ray_gives_them(tmp_path: Path, gpus: float, device: str) -> None:
    flags = {"model": f"{MODELS.parents[1] / 'run_models.py'}:small", "data": str(data(tmp_path / "data.npz", 8))}
    job = open_job(read_settings(None, [], flags))
    (tmp_path / "run").mkdir()
    store = RunFolder.create_or_resume(tmp_path / "run", job.identity(), job.about())
    ray = Mock()
    WorkerPool(ray, Cluster(), job, store, 1, gpus)
    settings = ray.remote.return_value.return_value.remote.call_args.args[0]
    assert json.loads(settings)["device"] == device


def test_cause_of_a_lost_worker_is_the_last_line_of_rays_message() -> None:
    story = (
        "The actor died because of an error raised in its creation task\n"
        + 9 * "  File ...\n"
        + "\nImportError: no torch\n"
    )
    assert _last_line(RuntimeError(story)) == "ImportError: no torch"
    assert _last_line(RuntimeError("The actor is unavailable.")) == "The actor is unavailable."


def test_progress_note_counts_workers_and_retries() -> None:
    cluster = Cluster(workers=3)
    cluster.alive, cluster.retried = 1, 0
    assert cluster.note() == "1 worker"
    cluster.alive, cluster.retried = 3, 2
    assert cluster.note() == "3 workers, 2 retried"
