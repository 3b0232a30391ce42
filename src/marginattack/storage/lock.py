"""One writer at a time: a lock on a folder, a lease on an object store.

A folder is locked by the kernel (flock), and the lock dies with its process, however that ends.

An object store has no locks that all of them share. There, ``.lease`` names its holder, who changes it every ``RENEW``
seconds and takes it away at the end. A lease that did not change for ``LAPSE`` seconds, by the watcher's own clock, is
nobody's; nor is one whose process was on this machine and is gone. What this guarantees: a second run refuses while the
first lives, and a run that may have lost its lease (it slept, the network was away) looks before its next commit, and
stops if it has. What it does not: between two that begin within the same moment the later writer wins, after ``SETTLE``
seconds to see who that is; one that hung for longer than that in between goes unnoticed until the other renews. Results
do not rest on it: shards of the same settings are the same files, whoever writes them, and other settings are refused
by the manifest.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marginattack.errors import InputError, one_line
from marginattack.storage.paths import Address, place

LAPSE = 60.0
RENEW = 10.0
SETTLE = 1.0

_held: dict[str, "Lease"] = {}  # the leases of this process, by their folders


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """The folder, made if need be, for this process alone."""
    folder = place(path)
    with _leased(folder) if isinstance(folder, Address) else _flocked(folder):
        yield


def still_ours(folder: Path) -> None:
    """Refuse to go on where somebody else took over."""
    if str(folder) in _held:
        _held[str(folder)].check()


@contextmanager
def _flocked(folder: Path) -> Iterator[None]:
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot write the run folder {folder}: {error.strerror or error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is in use by another process: wait for it, or give another --out") from None
        yield


@contextmanager
def _leased(folder: Address) -> Iterator[None]:
    lease = Lease(folder)
    try:
        lease.take()
    except OSError as error:
        reason = one_line(error)
        raise InputError(f"cannot write the run folder {folder}: {reason}") from None
    renewal = threading.Thread(target=lease.renew, daemon=True)
    renewal.start()
    _held[str(folder)] = lease
    try:
        yield
    finally:
        del _held[str(folder)]
        lease.over.set()
        renewal.join()
        lease.give_back()


class Lease:
    """The object that names who writes a run."""

    def __init__(self, folder: Address) -> None:
        self.folder, self.file = folder, folder / ".lease"
        self.mine: dict[str, Any] = {
            "owner": secrets.token_hex(8), "host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(),
            "count": 0,
        }  # fmt: skip
        self.over = threading.Event()
        self.signed = -LAPSE  # when
        self.lost_to = ""

    def take(self) -> None:
        """Wait until it is nobody's, and sign it; refuse where it is somebody's."""
        self._wait_until_free()
        self._sign()
        time.sleep(SETTLE)
        found = self.read()
        if found is None or found["owner"] != self.mine["owner"]:
            raise self._in_use(found)

    def renew(self) -> None:
        """Sign it again and again, until it is over or lost."""
        while not self.over.wait(RENEW):
            try:
                if self._lost():
                    return
                self._sign()
            except OSError:
                continue  # the store is away: it may be back the next time

    def check(self) -> None:
        """Refuse where it is lost. It cannot be, unless it was not signed for a while."""
        if not self.lost_to and _clock() - self.signed > LAPSE / 2:
            with suppress(OSError):  # the store is away: nothing is committed to it either
                self._lost()
        if self.lost_to:
            hint = "while this process could not renew its lease: leave it"
            raise InputError(f"{self.folder} was taken over by {self.lost_to} {hint}")

    def give_back(self) -> None:
        """Take it away, if it is still ours."""
        try:
            found = self.read()
            if found is not None and found["owner"] == self.mine["owner"]:
                self.file.unlink(missing_ok=True)
        except OSError:
            pass  # it lapses by itself

    def read(self) -> dict[str, Any] | None:
        """What stands in it; None where it is not there."""
        try:
            found = json.loads(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            found = {}
        return {"owner": "?", "host": "?", "machine": "?", "pid": 0, "count": 0, **found}

    def _wait_until_free(self) -> None:
        first, since = self.read(), time.monotonic()
        while (found := self.read()) is not None:
            if found["machine"] == self.mine["machine"] and not _alive(int(found["pid"])):
                return
            if found != first:
                raise self._in_use(found)
            if time.monotonic() - since > LAPSE:
                return
            time.sleep(min(1.0, LAPSE / 5))

    def _sign(self) -> None:
        began = _clock()
        self.mine["count"] += 1
        self.file.send(json.dumps(self.mine).encode())
        self.signed = began

    def _lost(self) -> bool:
        """Whether somebody else signed; also one who has taken it away since."""
        found = self.read()
        if found is None:
            self.lost_to = "another process, which has ended,"
        elif found["owner"] != self.mine["owner"]:
            self.lost_to = f"{found['host']}, process {found['pid']}"
        return bool(self.lost_to)

    def _in_use(self, found: dict[str, Any] | None) -> InputError:
        by = f" ({found['host']}, process {found['pid']})" if found else ""
        return InputError(f"{self.folder} is in use by another process{by}: wait for it, or give another --out")


def _machine() -> str:
    """What tells machines, and containers on them, apart."""
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    except OSError:
        parts.append(secrets.token_hex(8))  # unknown: nobody is our neighbour
    return " ".join(parts)


def _clock() -> float:
    """Seconds; those that the machine slept count."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OSError):
        return True
    return True
