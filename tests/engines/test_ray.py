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
import torch
from cluster_models import POISON, STICKY
from command_line import ENVIRONMENT, Command
from nodes import wait_until_ended
from processes import below, environment, listening
from run_folders import call, command, content, data, temporary_files

from marginattack.errors import InputError
from marginattack.runs.engines import ray_start, worker
from marginattack.runs.engines.ray import Cluster, Task, WorkerPool, _last_line
from marginattack.runs.engines.worker import Worker
from marginattack.runs.job import Job, open_job
from marginattack.runs.settings import Settings, read_settings
from marginattack.sources.data_arrays import ArrayData
from marginattack.storage import lock
from marginattack.storage.lock import lock_folder
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


def test_lost_and_hung_workers_and_a_failing_shard_cost_only_that_shard(tmp_path: Path) -> None:
    file = data(tmp_path / "data-64.npz")
    arrays = dict(np.load(file))
    arrays["x"][41, 0, 0, 0], arrays["x"][20, 0, 0, 0] = POISON, STICKY  # in shards 5 and 2
    np.savez(file, **arrays)
    poisoned = tmp_path / "poisoned"
    poisoned.touch()
    marks = {"FRAGILE": str(tmp_path / "died"), "POISONED": str(poisoned)}
    arguments = on_cluster(tmp_path, tmp_path / "run", "fragile", "--shard-timeout", "6")
    result = run(arguments, **marks)
    assert result.returncode == 1, result.stderr
    assert (tmp_path / "died").exists()
    assert (tmp_path / "died.hung").exists()
    assert "grave: shards-set-aside (16 of 128)" in result.stderr
    where = "samples 40 to 47 (the model fails on sample 41 (batch: samples 40 to 47, shape (8, 3, 6, 6)): "
    assert f"marginattack linf shard 5, {where}" in result.stderr
    assert "these pixels are poisoned" in result.stderr
    manifest = RunFolder(tmp_path / "run").manifest
    named = [(each["shard"], each["attack"], each["norm"], each["ids"]) for each in manifest["failed_shards"]]
    assert sorted(named) == [(5, "marginattack", norm, [*range(40, 48)]) for norm in ("l2", "linf")]
    assert manifest["finished"] is None
    retried = manifest["sessions"][-1]["retried"]
    assert retried >= 6  # two shards twice, what the dead worker had, what the hung one had; more on a slow machine

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
    assert result.stderr.splitlines()[-1] == "marginattack: Interrupted. Run the same command again to resume."
    wait_until_ended(started)
    assert temporary_files(tmp_path / "run") == []
    shards = len(list(tmp_path.glob("run/margins/*/*.parquet")))
    assert 1 <= shards < 16


def test_worker_refuses_another_run_than_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a worker goes
    flags = {"model": f"{MODELS.parents[1] / 'run_models.py'}:small", "data": str(data(tmp_path / "data.npz", 8))}
    settings = read_settings(None, [], {**flags, "shard": 8})
    job = open_job(settings)
    identity, about = job.worker_identity(), {**job.about(), "started": "then"}
    there = str(tmp_path / "run")

    def make_worker(out: str, identity: dict[str, Any], owner: str) -> Worker:
        return Worker(settings.model_dump_json(), out, str(tmp_path), json.dumps(identity), owner)

    with lock_folder(there) as lease:
        RunFolder.create_or_resume(there, job.identity(), about, lease)
        late = make_worker(there, identity, lease.owner)
        assert late.open()["pid"] == os.getpid()
        other = {**identity, "model": {**identity["model"], "digest": "0"}}
        with pytest.raises(InputError, match=r"cannot join: it opens another model or other data .model.digest was"):
            make_worker(there, other, lease.owner).open()
        with pytest.raises(InputError, match=r"cannot join: .*/run was taken over by another process"):
            make_worker(there, identity, "somebody else").open()
        with pytest.raises(InputError, match=r"it does not see the run in .*: give --out on a shared file system"):
            make_worker(str(tmp_path / "hidden"), identity, lease.owner).open()

    monkeypatch.setattr(lock, "STALE", 0.3)
    with pytest.raises(InputError, match=r"workers of an interrupted run still use .*/run: wait"), lock_folder(there):
        pass  # the driver has ended, but a worker of it could still write
    late.stack.close()
    with lock_folder(there):
        with pytest.raises(InputError, match="was taken over by another process"):
            late.measure(0, Part("race", "l2"), 64)
        assert not list((tmp_path / "run").glob("margins/*/*"))

    def without_torchvision(settings: Settings, driver: Any) -> Any:
        raise ImportError("No module named torchvision")

    monkeypatch.setattr(worker, "open_job", without_torchvision)
    with pytest.raises(
        InputError, match=rf"the worker on {socket.gethostname()} cannot join: ImportError: No module named"
    ):
        make_worker(there, identity, "").open()


def test_worker_reads_its_samples_only_and_refuses_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"model": f"{MODELS.parents[1] / 'run_models.py'}:small", "data": str(data(tmp_path / "data.npz", 256))}
    settings = read_settings(None, [], {**flags, "shard": 8, "attacks": ["fgsm"], "budget": 4})
    job = open_job(settings)
    with lock_folder(tmp_path / "run") as lease:
        folder = RunFolder.create_or_resume(tmp_path / "run", job.identity(), job.about(), lease)
        _check_worker_reads(job, folder, lease.owner, monkeypatch)


def _check_worker_reads(job: Job, folder: RunFolder, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, tmp_path = job.settings, Path.cwd()
    folder.update_manifest(sessions=[job.session(8, torch.device("cpu"))])
    rows: list[int] = []
    read = ArrayData.read

    def recorded_read(self: ArrayData, some: list[int]) -> Any:
        rows.extend(some)
        return read(self, some)

    monkeypatch.setattr(ArrayData, "read", recorded_read)
    monkeypatch.setattr(ArrayData, "digest", lambda self: pytest.fail("a worker has read all data"))
    arguments = (settings.model_dump_json(), str(folder.path), str(tmp_path), json.dumps(job.worker_identity()), owner)
    rows.clear()
    one = Worker(*arguments)
    one.measure(3, folder.parts[0], 8)
    assert set(rows) <= {0, *range(24, 32)}
    assert one.verify(3, folder.parts[0], 8) == (8, 0)

    with np.load("data.npz") as arrays:
        x, y = arrays["x"], arrays["y"]
    x[25] = 1 - x[25]  # a sample of shard 3
    np.savez("data.npz", x=x, y=y)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"cannot join: it opens another model or other data .data.digest was"):
        Worker(*arguments).open()
    x[25] = 1 - x[25]
    np.savez_compressed("data.npz", x=x, y=y)  # a copy with another time, which is hashed
    assert Worker(*arguments).verify(3, folder.parts[0], 8) == (8, 0)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--workers", "2"], "--workers 2 needs a Ray cluster: add --engine ray"),
        (["--engine", "slurm"], "no engine named 'slurm': choose one of serial, ray"),
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
    job = open_job(read_settings(None, [], {**flags, "shard": 8}))
    (tmp_path / "run").mkdir()
    store = RunFolder.create_or_resume(tmp_path / "run", job.identity(), job.about())
    ray = Mock()
    pool = WorkerPool(ray, Cluster(), job, store, 1, gpus)
    settings = ray.remote.return_value.return_value.remote.call_args.args[0]
    assert json.loads(settings)["device"] == device
    task = Task("measure", (0, Part("race", "l2"), 8))
    pool.idle, pool.failures[task] = [0, 1, 2], [2, 1]
    assert [pool._pick_worker(task), pool._pick_worker(task)] == [0, 2]  # elsewhere, if there is an elsewhere


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
