"""Runs on an object store: a real S3 server on loopback, the real command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import ENVIRONMENT, Command
from faults import expire_locks
from object_store import download, list_objects, s3_server
from run_folders import call, command, content, data

from marginattack.errors import InputError
from marginattack.runs.job import open_job
from marginattack.runs.settings import read_settings
from marginattack.storage import lock
from marginattack.storage.files import write_atomically
from marginattack.storage.lock import lock_folder
from marginattack.storage.paths import is_remote, parse_path
from marginattack.storage.run_folder import Part, RunFolder

pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[server]'")
s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'marginattack[cloud]'")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as environment:
        yield environment


@pytest.fixture
def connected(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the tests' own process reach the server, with locks that expire soon."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lock, "RENEW", 0.2)
    monkeypatch.setattr(lock, "STALE", 3.0)
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


def on_store(folder: Path, name: str, model: str = "small") -> list[str]:
    arguments = command(folder, Path("x"), model=model, n=32)
    arguments[arguments.index("--out") + 1] = f"s3://runs/{name}"
    return arguments


def run(arguments: list[str], environment: dict[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
    return call(arguments, {**ENVIRONMENT, **environment}, **more)


def test_killed_and_resumed_run_has_the_objects_of_a_folder(server: dict[str, str], tmp_path: Path) -> None:
    arguments = on_store(tmp_path, "killed", "slow")
    process = Command(arguments, {**ENVIRONMENT, **server})
    while not any(name.startswith("margins/") for name in list_objects(server, "killed")):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert ".lock" in list_objects(server, "killed")
    finished = [name for name in list_objects(server, "killed") if name.startswith("margins/")]
    assert 1 <= len(finished) < 8

    result = run(arguments, server, first=partial(expire_locks, 4.0))  # waits until the killed one's lock is stale
    assert result.returncode == 0, result.stderr
    assert "s3://runs/killed" in result.stdout
    assert call(command(tmp_path, tmp_path / "folder", model="slow", n=32)).returncode == 0
    assert content(download(server, "killed", tmp_path / "copy")) == content(tmp_path / "folder")
    assert list_objects(server, "killed") == sorted(
        str(file.relative_to(tmp_path / "folder")) for file in (tmp_path / "folder").rglob("*.*") if file.is_file()
        and file.name not in (".lock", ".workers")
    )  # fmt: skip
    changed = run([*arguments, "--seed", "1"], server)
    assert changed.returncode == 2
    assert "s3://runs/killed holds a run with other settings (seed was 0, is 1)" in changed.stderr
    report = run([sys.executable, "-m", "marginattack", "report", "s3://runs/killed", "--json"], server)
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)[0]["run"] == "s3://runs/killed"


def test_run_is_read_in_place(server: dict[str, str], connected: None, tmp_path: Path) -> None:
    out = "s3://runs/read"
    result = run(on_store(tmp_path, "read"), server)
    assert result.returncode == 0, result.stderr
    folder = RunFolder(Path(out))  # pathlib shortens s3:// to s3:/
    assert str(folder.path) == out
    assert folder.pending() == []
    assert len(folder.table(["id"])) == 64
    page = tmp_path / "report.html"
    result = run([sys.executable, "-m", "marginattack", "report", out, "--out", str(page)], server)
    assert result.returncode == 0, result.stderr
    assert "data:image/png" in page.read_text()  # the gallery reads single row groups
    folder.file("images", folder.parts[0], 3).unlink()
    assert folder.pending() == [(3, folder.parts[0])]
    names = {path.name for path in folder.path.iterdir()}
    assert names == {"manifest.json", "findings.json", "margins", "images", "traces.parquet"}
    (folder.path / "manifest.json").unlink()
    with pytest.raises(InputError, match="holds other files"):
        RunFolder.check_compatible(out, {})


def test_lock_refuses_a_second_process_until_it_is_released(
    server: dict[str, str], connected: None, tmp_path: Path
) -> None:
    folder = parse_path("s3://runs/lock")
    with lock_folder("s3://runs/lock"):
        with pytest.raises(InputError, match="in use by another process"), lock_folder("s3://runs/lock"):
            pass
        result = run(on_store(tmp_path, "lock"), server)
        assert result.returncode == 2
        owner = f"{socket.gethostname()}, process {os.getpid()}"
        assert f"s3://runs/lock is in use by another process ({owner}): wait for it" in result.stderr
    assert not (folder / ".lock").exists()


def test_stale_lock_is_replaced_and_left_to_its_new_owner(connected: None) -> None:
    folder = parse_path("s3://runs/stale")
    with lock_folder(folder):
        (folder / ".lock").write_text("elsewhere, process 1\nabc")  # as if this process had slept and lost its lock
        started = time.monotonic()
        with lock_folder(folder):
            assert time.monotonic() - started > lock.STALE
            ours = (folder / ".lock").read_text()
            assert ours.startswith(socket.gethostname())
            time.sleep(3 * lock.RENEW)
            assert (folder / ".lock").read_text() != ours  # renewed
        (folder / ".lock").write_text("elsewhere, process 1\nabc")
    assert (folder / ".lock").exists()


def test_process_that_slept_while_another_took_over_writes_nothing_more(
    connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "RENEW", 60.0)  # it sleeps, and does not renew its lock
    flags = {"model": f"{Path(__file__).parents[1] / 'run_models.py'}:small", "data": str(data(tmp_path / "8.npz", 8))}
    job = open_job(read_settings(None, [], {**flags, "shard": 8}))
    sessions = [job.session(8, torch.device("cpu"))]
    with lock_folder("s3://runs/slept") as lease:
        folder = RunFolder.create_or_resume("s3://runs/slept", job.identity(), job.about(), lease)
        folder.update_manifest(sessions=sessions)
        (folder.path / ".lock").write_text("elsewhere, process 1\nabc")
        images = {"original": torch.zeros(1, 2), "adversarial": torch.zeros(1, 2)}
        with pytest.raises(InputError, match="s3://runs/slept was taken over by another process"):
            folder.update_manifest(sessions=[])
        with pytest.raises(InputError, match="s3://runs/slept was taken over by another process"):
            folder.commit(Part("race", "l2"), 0, {"id": [0]}, images, {})
    assert not any(folder.path.glob("*/*/*"))
    assert RunFolder("s3://runs/slept").manifest["sessions"] == sessions


def test_interrupted_upload_leaves_all_of_the_object_or_nothing(
    connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = s3fs.S3FileSystem._put_file

    async def interrupt(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return await upload(*arguments, **options)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(s3fs.S3FileSystem, "_put_file", interrupt)
            file = parse_path("s3://runs/interrupted/file")  # which takes the patched method along
            with pytest.raises(KeyboardInterrupt), write_atomically(file) as stream:
                stream.write(b"all of it")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not file.exists() or file.read_bytes() == b"all of it"
    s3fs.S3FileSystem.clear_instance_cache()
    other = parse_path("s3://runs/interrupted/other")
    with pytest.raises(KeyboardInterrupt), write_atomically(other) as stream:
        stream.writelines(interrupt_after(b"half of it"))
    assert not other.exists()


def interrupt_after(content: bytes) -> Iterator[bytes]:
    yield content
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s3://nowhere/run", "cannot write the run folder s3://nowhere/run"),
        ("s3://", "s3:// is not the address of a run folder"),
        ("s3://runs/x?region=y", "an address with a user name, key or query (s3://…) is refused"),
        ("ftp://host/run", "unknown kind of address ftp://host/run"),
    ],
)
def test_bad_address_is_refused_in_one_line(server: dict[str, str], tmp_path: Path, out: str, message: str) -> None:
    result = run([out if word == "s3://runs/none" else word for word in on_store(tmp_path, "none")], server)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_missing_packages_are_named_where_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with pytest.raises(InputError, match="run folders need a POSIX system"), lock_folder(tmp_path):
        pass
    monkeypatch.setitem(sys.modules, "upath", None)
    assert parse_path("runs/mnist") == Path("runs/mnist")
    with pytest.raises(
        InputError, match=r"s3://runs/x needs the extra 'cloud' .*: pip install 'marginattack\[cloud\]'"
    ):
        parse_path("s3://runs/x")


def test_kinds_of_paths(connected: None, tmp_path: Path) -> None:
    assert parse_path("file:///a/b") == Path("/a/b")
    assert str(parse_path("s3:/bucket/run")) == "s3://bucket/run"
    assert str(parse_path("s3://bucket/run/") / "margins" / "a") == "s3://bucket/run/margins/a"
    assert is_remote(parse_path("s3://bucket/run"))
    assert not is_remote(parse_path(tmp_path))
