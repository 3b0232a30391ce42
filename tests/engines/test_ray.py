"""The same command on a cluster of this machine: the rows of the serial engine, whatever happens to the workers."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_models import POISON
from processes import alive, below, environment, listening
from run_folders import ENVIRONMENT, call, command, content, data, scratch

from marginattack.classifier import Refused
from marginattack.engines.worker import Worker
from marginattack.job import open_job
from marginattack.settings import read_settings
from marginattack.store import Store

pytest.importorskip("ray", reason="Ray is not installed: pip install 'marginattack[ray]'")

MODELS = Path(__file__).parent / "cluster_models.py"
RAY = ("--engine", "ray", "--workers", "2")


def on_cluster(folder: Path, out: Path, model: str, *more: str) -> list[str]:
    arguments = command(folder, out, *RAY, *more)
    arguments[arguments.index("--model") + 1] = f"{MODELS}:{model}"
    return arguments


def environ(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(MODELS.parent), str(MODELS.parents[1])])
    return {**ENVIRONMENT, "PYTHONPATH": path, **more}


def run(arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, env=environ(**more))


def test_a_lost_worker_and_a_poisoned_shard_cost_nothing_but_that_shard(tmp_path: Path) -> None:
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
    assert "these pixels cannot be borne" in result.stderr
    manifest = Store(tmp_path / "run").manifest
    named = [(each["shard"], each["attack"], each["norm"]) for each in manifest["set_aside"]]
    assert sorted(named) == [(5, "marginattack", "l2"), (5, "marginattack", "linf")]
    assert manifest["finished"] is None
    assert manifest["sessions"][-1]["retried"] == 5  # two shards twice, and what the dead worker had

    poisoned.unlink()
    result = run([word for word in arguments if word not in RAY], **marks)  # any engine goes on with any folder
    assert result.returncode == 0, result.stderr
    assert call(command(tmp_path, tmp_path / "serial")).returncode == 0
    found, expected = content(tmp_path / "run"), content(tmp_path / "serial")
    assert found == expected
    assert scratch(tmp_path / "run") == []
    manifest = Store(tmp_path / "run").manifest
    assert manifest["set_aside"] == []
    assert manifest["verified"]["rows"] == 128
    assert manifest["verified"]["failed"] == 0


def test_an_interrupt_ends_with_130_on_loopback_with_a_token_and_leaves_no_process(tmp_path: Path) -> None:
    arguments = on_cluster(tmp_path, tmp_path / "run", "slow")
    process = subprocess.Popen(arguments, env=environ(), stderr=subprocess.PIPE, text=True)
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
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "marginattack: interrupted; the same command goes on\n"
    gone(started)
    assert scratch(tmp_path / "run") == []
    shards = len(list(tmp_path.glob("run/margins/*/*.parquet")))
    assert 1 <= shards < 16


def gone(started: set[int], seconds: float = 15) -> None:
    """All of these processes end, soon."""
    until = time.monotonic() + seconds
    while started & alive().keys() and time.monotonic() < until:
        time.sleep(0.1)
    assert not started & alive().keys()


def test_a_worker_refuses_what_is_not_the_run_that_the_driver_means(tmp_path: Path) -> None:
    flags = {"model": f"{MODELS.parents[1] / 'run_models.py'}:small", "data": str(data(tmp_path / "data.npz"))}
    settings = read_settings(None, [], flags)
    job = open_job(settings)
    identity, about = job.identity(), {**job.about(), "started": "then"}
    (tmp_path / "run").mkdir()
    Store.begin(tmp_path / "run", identity, about)
    there = str(tmp_path / "run")

    def opened(out: str, identity: dict[str, Any], started: str) -> Any:
        return Worker(settings.model_dump_json(), out, str(tmp_path), json.dumps(identity), started).open()

    assert opened(there, identity, "then")["pid"] == os.getpid()
    other = {**identity, "model": {**identity["model"], "digest": "0"}}
    with pytest.raises(Refused, match=r"cannot take part: it opens another model or other data .model.digest was"):
        opened(there, other, "then")
    with pytest.raises(Refused, match=r"it does not see the run in .* .another run is there"):
        opened(there, identity, "now")
    with pytest.raises(Refused, match=r"it does not see the run in .*: give --out on a shared file system"):
        opened(str(tmp_path / "hidden"), identity, "then")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--workers", "2"], "--workers 2 is for a cluster: add --engine ray"),
        (["--engine", "slurm"], "no engine is named 'slurm': choose from serial, ray"),
        (["--engine", "ray", "--gpus-per-worker", "1", "--device", "cpu"], "this machine has no GPU"),
        (["--engine", "ray", "--device", "cuda:1"], "cuda:1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path, more: list[str], named: str) -> None:
    result = call(command(tmp_path, tmp_path / "run", *more))
    assert result.returncode == 2
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_progress_says_how_the_workers_are() -> None:
    from marginattack.engines.ray import Cluster

    cluster = Cluster(workers=3)
    cluster.alive, cluster.retried = 1, 0
    assert cluster.note() == "1 worker"
    cluster.alive, cluster.retried = 3, 2
    assert cluster.note() == "3 workers, 2 retried"
