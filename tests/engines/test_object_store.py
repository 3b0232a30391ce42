"""Runs on an object store: a real S3 server on loopback, the real command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_store import fetched, names, s3_server
from run_folders import ENVIRONMENT, call, command, content

from marginattack.errors import InputError
from marginattack.storage import lock as leases
from marginattack.storage import paths as places
from marginattack.storage.lock import Lease, locked, still_ours
from marginattack.storage.paths import Address, place
from marginattack.storage.run_folder import Store

pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[server]'")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as environment:
        yield environment


@pytest.fixture
def here(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests' own process reaches the server too, and is quick about leases."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    for name, seconds in {"LAPSE": 5.0, "RENEW": 0.2, "SETTLE": 0.05}.items():
        monkeypatch.setattr(leases, name, seconds)
    places._system_of.cache_clear()
    yield
    places._system_of.cache_clear()


def on_store(folder: Path, name: str, model: str = "small") -> list[str]:
    arguments = command(folder, Path("x"), model=model)
    arguments[arguments.index("--out") + 1] = f"s3://runs/{name}"
    return arguments


def test_killed_and_resumed_the_objects_are_those_of_a_folder(server: dict[str, str], tmp_path: Path) -> None:
    arguments, environment = on_store(tmp_path, "killed", "slow"), {**ENVIRONMENT, **server}
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any(name.startswith("margins/") for name in names(server, "killed")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert ".lease" in names(server, "killed")
    half = [name for name in names(server, "killed") if name.startswith("margins/")]
    assert 1 <= len(half) < 16

    result = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Stored in s3://runs/killed; `marginattack report s3://runs/killed` shows it." in result.stdout
    assert call(command(tmp_path, tmp_path / "folder", model="slow")).returncode == 0
    copy = fetched(server, "killed", tmp_path / "copy")
    assert content(copy) == content(tmp_path / "folder")
    assert names(server, "killed") == sorted(
        str(file.relative_to(tmp_path / "folder")) for file in (tmp_path / "folder").rglob("*.*") if file.is_file()
        and file.name != ".lock"
    )  # fmt: skip
    changed = subprocess.run([*arguments, "--seed", "1"], env=environment, capture_output=True, text=True, check=False)
    assert changed.returncode == 2
    assert "s3://runs/killed holds a run with other settings (seed was 0, is 1)" in changed.stderr
    report = [sys.executable, "-m", "marginattack", "report", "s3://runs/killed", "--json"]
    shown = subprocess.run(report, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)[0]["run"] == "s3://runs/killed"


def test_a_store_is_read_where_it_lies(server: dict[str, str], here: None, tmp_path: Path) -> None:
    out = "s3://runs/read"
    result = subprocess.run(
        on_store(tmp_path, "read"), env={**ENVIRONMENT, **server}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    store, collapsed = Store(out), Store(Path(out))
    assert str(store.path) == str(collapsed.path) == out
    assert store.pending() == []
    assert len(store.table(["id"])) == 128
    (store.file("images", store.parts[0], 3)).unlink()
    assert store.pending() == [(3, store.parts[0])]
    assert store.first(store.parts[0]) == 0
    found = [path.name for path in store.path.iterdir()]
    assert {"manifest.json", "findings.json", "margins", "images", "traces.parquet"} == set(found)
    (store.path / "manifest.json").unlink()
    with pytest.raises(InputError, match="holds other things"):
        Store.compatible(out, {})


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_lease_is_kept_given_back_and_lost(server: dict[str, str], here: None, tmp_path: Path) -> None:
    folder = Address("s3://runs/lease")
    with locked("s3://runs/lease"):
        first = json.loads((folder / ".lease").read_bytes())
        soon(lambda: json.loads((folder / ".lease").read_bytes())["count"] > first["count"])
        with pytest.raises(InputError, match="in use by another process"), locked("s3://runs/lease"):
            pass
        still_ours(folder)
        result = subprocess.run(
            on_store(tmp_path, "lease"), env={**ENVIRONMENT, **server}, capture_output=True, text=True, check=False
        )
        assert result.returncode == 2
        named = f"{socket.gethostname()}, process {os.getpid()}"
        assert f"s3://runs/lease is in use by another process ({named}): wait for it" in result.stderr
        other = Lease(folder)

        def signed_by_the_other() -> bool:
            other._sign()  # as one does who found it lapsed; again, as the renewal may come in between
            return bool(leases._held[str(folder)].lost_to)

        soon(signed_by_the_other)
        with pytest.raises(InputError, match="was taken over by"):
            still_ours(folder)
    assert (folder / ".lease").exists()  # it is the other's
    other.give_back()
    assert not (folder / ".lease").exists()


def test_a_lease_that_nobody_renews_lapses(server: dict[str, str], here: None) -> None:
    left = Lease(Address("s3://runs/lapsed"))
    left.mine["machine"] = "elsewhere"
    left._sign()
    began = time.monotonic()
    with locked("s3://runs/lapsed"):
        assert time.monotonic() - began > 5.0
    left.mine.update(machine=Lease(left.folder).mine["machine"], pid=2**22 + 1)  # a process here that is no more
    left._sign()
    began = time.monotonic()
    with locked("s3://runs/lapsed"):
        assert time.monotonic() - began < 5.0


def test_who_slept_while_another_came_and_went_stops_at_once(
    server: dict[str, str], here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW", 1000.0)  # asleep
    folder = Address("s3://runs/slept")
    with locked(folder):
        still_ours(folder)
        (folder / ".lease").unlink()  # as the other does at the end
        still_ours(folder)  # signed a moment ago: nobody looks
        awake = leases._clock() + leases.LAPSE
        monkeypatch.setattr(leases, "_clock", lambda: awake)
        with pytest.raises(InputError, match="was taken over by another process, which has ended, while this process"):
            still_ours(folder)


def test_a_store_that_is_away_is_not_a_lost_lease(
    server: dict[str, str], here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(lease: Lease) -> None:
        raise OSError("no route to it")

    monkeypatch.setattr(leases, "RENEW", 1000.0)
    folder = Address("s3://runs/away")
    with locked(folder):
        awake = leases._clock() + leases.LAPSE
        monkeypatch.setattr(leases, "_clock", lambda: awake)
        with monkeypatch.context() as while_away:
            while_away.setattr(Lease, "read", away)
            still_ours(folder)
        still_ours(folder)


def test_an_interrupt_while_a_stream_opens_leaves_all_of_the_object_or_nothing(
    server: dict[str, str], here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, root = places._system_of("s3:", "runs")

    class Interrupted:
        def open_output_stream(self, path: str) -> object:
            stream = system.open_output_stream(path)
            os.kill(os.getpid(), signal.SIGINT)
            return stream

    file = Address("s3://runs/interrupted/file")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(places, "_connected", lambda *parts: (Interrupted(), f"{root}/interrupted/file"))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        try:
            with pytest.raises(KeyboardInterrupt):
                file.send(b"all of it")
        finally:
            signal.signal(signal.SIGINT, before)
    assert not file.exists() or file.read_bytes() == b"all of it"


@pytest.mark.parametrize(
    ("out", "named"),
    [
        ("s3://nowhere/run", "cannot write the run folder s3://nowhere/run"),
        ("s3://", "s3:// is no address of a run"),
        ("s3://runs/x?region=y", "is no address of a run"),
        ("ftp://host/run", "is on no store that is known"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_in_one_line(
    server: dict[str, str], tmp_path: Path, out: str, named: str
) -> None:
    arguments = [out if word == "s3://runs/none" else word for word in on_store(tmp_path, "none")]
    result = subprocess.run(arguments, env={**ENVIRONMENT, **server}, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_places_are_told_apart(tmp_path: Path) -> None:
    assert type(place("file:///a/b")) is type(place("/a/b"))
    assert place("file:///a/b") == Path("/a/b")
    assert str(place("s3:/bucket/run")) == "s3://bucket/run"
    assert str(place("s3://bucket/run") / "margins" / "a") == "s3://bucket/run/margins/a"
    assert (place("gs://bucket/run") / "x").parent == place("gs://bucket/run")
    assert place("s3://bucket/run").resolve().name == "run"
    assert not isinstance(place(tmp_path), Address)
