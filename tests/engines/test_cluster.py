"""A real cluster of two nodes on this machine, and everything that can be killed during a run. Slow."""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import ENVIRONMENT
from nodes import start_nodes, wait_until_ended
from object_store import download, s3_server
from processes import alive, below, command, listening
from run_folders import call, content, temporary_files
from run_folders import command as measure
from test_ray import RAY, environ, on_cluster, run

from marginattack.storage.run_folder import RunFolder

pytest.importorskip("ray", reason="Ray is not installed: pip install 'marginattack[ray]'")
pytestmark = pytest.mark.slow

SAMPLES = 320


def shards(run: Path) -> int:
    return len(list(run.glob("margins/*/*.parquet")))


def until(condition: Any, process: subprocess.Popen[Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended before anything could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)


def workers(raylets: list[int]) -> list[int]:
    """The processes that hold the model."""
    every = {pid for raylet in raylets if raylet in alive() for pid in below(raylet)}
    return [pid for pid in every if command(pid).startswith("ray::Worker")]


def test_killed_worker_node_and_driver_lose_and_duplicate_no_row(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start_nodes(2) as (cluster, environment):
        arguments = measure(tmp_path, run, *RAY, "--address", cluster["address"], model="slow", n=SAMPLES)
        driver = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until(lambda: shards(run) >= 3 and len(workers(cluster["raylets"])) == 2, driver)
        assert listening({*below(driver.pid), *below(cluster["raylets"][0])}) == {"127.0.0.1"}
        victim = workers(cluster["raylets"])[0]
        os.kill(victim, signal.SIGKILL)
        before = shards(run)
        until(lambda: len(set(workers(cluster["raylets"])) - {victim}) == 2 and shards(run) >= before + 4, driver)

        os.kill(cluster["raylets"][1], signal.SIGKILL)  # the node that is not the head
        before = shards(run)
        until(lambda: len(workers(cluster["raylets"])) == 1 and shards(run) >= before + 4, driver)

        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        assert shards(run) < 2 * SAMPLES // 8, "nothing was left for the second driver"
        result = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == 0, result.stderr
    assert call(measure(tmp_path, tmp_path / "serial", model="slow", n=SAMPLES)).returncode == 0
    assert content(run) == content(tmp_path / "serial")
    assert temporary_files(run) == []
    rows = RunFolder(run).table(["norm", "id"]).to_pydict()
    expected = [(norm, sample) for norm in ("l2", "linf") for sample in range(SAMPLES)]
    assert sorted(zip(rows["norm"], rows["id"], strict=True)) == expected
    first, second = RunFolder(run).manifest["sessions"]
    assert "workers" not in first  # it was killed before it could report
    assert second["engine"] == "ray"


def test_worker_that_restarts_slowly_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    wait = "import os, time\nif os.path.exists(os.environ['FRAGILE']): time.sleep(10)\n"  # as on a node that boots
    (tmp_path / "site/sitecustomize.py").write_text(wait)
    arguments = on_cluster(tmp_path, tmp_path / "run", "fragile", "--workers", "1")
    path = os.pathsep.join([str(tmp_path / "site"), environ()["PYTHONPATH"]])
    result = run(arguments, FRAGILE=str(tmp_path / "died"), POISONED=str(tmp_path / "none"), PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
    session = RunFolder(tmp_path / "run").manifest["sessions"][-1]
    assert (session["workers"], session["retried"]) == (1, 1)


def test_interrupt_while_the_cluster_starts_leaves_no_process(tmp_path: Path) -> None:
    arguments = on_cluster(tmp_path, tmp_path / "run", "slow", "--address", "local")
    process = subprocess.Popen(arguments, env=environ(), stderr=subprocess.PIPE, text=True)
    started: set[int] = set()
    while not any("dashboard/agent.py" in command(pid) for pid in started):
        started = below(process.pid)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        started |= below(process.pid)
        time.sleep(0.02)
    assert process.communicate()[1] == "marginattack: Interrupted. Run the same command again to resume.\n"
    assert process.returncode == 130
    wait_until_ended(started)


def test_killed_driver_ends_its_own_cluster(tmp_path: Path) -> None:
    arguments = measure(tmp_path, tmp_path / "run", *RAY, model="slow")
    driver = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: shards(tmp_path / "run") >= 2, driver)
    started = below(driver.pid)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until_ended(
        {pid for pid in started if not command(pid).startswith("ray::") or command(pid).startswith("ray::Worker")}
    )
    wait_until_ended(started, 120)  # Ray's own two agents look for their cluster for a minute
    assert call(arguments).returncode == 0
    assert call(measure(tmp_path, tmp_path / "serial", model="slow")).returncode == 0
    assert content(tmp_path / "run") == content(tmp_path / "serial")
    assert temporary_files(tmp_path / "run") == []


def test_cluster_commits_to_an_object_store(tmp_path: Path) -> None:
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[server]'")
    with s3_server(tmp_path / "log") as keys:
        arguments = measure(tmp_path, Path("x"), *RAY)
        arguments[arguments.index("--out") + 1] = "s3://runs/cluster"
        result = subprocess.run(arguments, env={**ENVIRONMENT, **keys}, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        copy = download(keys, "cluster", tmp_path / "copy")
    assert call(measure(tmp_path, tmp_path / "serial")).returncode == 0
    assert content(copy) == content(tmp_path / "serial")
    assert not list(copy.rglob(".*"))


def test_cluster_with_another_token_is_refused_in_one_line(tmp_path: Path) -> None:
    with start_nodes(2) as (cluster, environment):
        arguments = measure(tmp_path, tmp_path / "run", *RAY, "--address", cluster["address"])
        stranger = {**environment, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        result = subprocess.run(arguments, env=stranger, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("marginattack: ")]
    assert len(lines) == 1
    assert f"no Ray cluster answers at --address {cluster['address']}" in lines[0]
    with contextlib.suppress(FileNotFoundError):
        assert not list((tmp_path / "run").glob("margins/*/*"))
