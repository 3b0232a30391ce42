"""One writer per run folder.

A local folder is locked by the kernel (``flock``); the lock ends with its process. On an object store the lock is the
object ``.lock``, created only if it does not exist (a conditional write) and renewed every ``RENEW`` seconds by its
owner. One that has not been renewed for ``STALE`` seconds belongs to a process that died, and is replaced. The lock
only saves work: a shard is the same file whichever process writes it, and ``RunFolder.commit`` writes into no other run
than the one that it was opened for.
"""

import itertools
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
from marginattack.storage.paths import StoragePath, parse_path

RENEW = 5.0
STALE = 30.0


@contextmanager
def lock_folder(path: str | StoragePath) -> Iterator[None]:
    """Create the folder if it does not exist and keep other processes from writing to it."""
    folder = parse_path(path)
    with _lock_file(folder) if isinstance(folder, Path) else _lock_object(folder):
        yield


@contextmanager
def _lock_file(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        raise InputError(f"cannot lock {folder}: run folders need a POSIX system such as Linux, macOS or WSL") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise _not_writable(folder, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(folder) from None
        yield


@contextmanager
def _lock_object(folder: StoragePath) -> Iterator[None]:
    lock = folder / ".lock"
    owner = f"{socket.gethostname()}, process {os.getpid()}\n{secrets.token_hex(8)}"
    try:
        _acquire(lock, owner)
    except OSError as error:
        raise _not_writable(folder, error) from None
    released = threading.Event()
    renewal = threading.Thread(target=_renew, args=(lock, owner, released), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        released.set()
        renewal.join()
        with suppress(Exception):  # a store that cannot be reached: the lock expires
            if _is_owner(lock, owner):
                lock.unlink()


def _acquire(lock: Any, owner: str) -> None:
    """Create the lock object; if it exists, wait until it is released or stale, and refuse once it is renewed."""
    seen, deadline = None, time.monotonic() + STALE
    while not _create(lock, owner):
        current = _read(lock)
        if current is not None and seen not in (None, current):
            raise _in_use(lock.parent, current.splitlines()[0])
        seen = current
        if time.monotonic() > deadline:
            lock.unlink(missing_ok=True)
        else:
            time.sleep(min(1.0, RENEW))


def _create(lock: Any, owner: str) -> bool:
    """Write the lock object unless it exists; whether it was written."""
    try:
        lock.fs.pipe_file(lock.path, owner.encode(), mode="create")
    except FileExistsError:
        return False
    return True


def _read(lock: Any) -> str | None:
    try:
        return str(lock.read_text())
    except FileNotFoundError:
        return None


def _is_owner(lock: Any, owner: str) -> bool:
    return (_read(lock) or "").startswith(owner)


def _renew(lock: Any, owner: str, released: threading.Event) -> None:
    """Change the lock object every few seconds until it is released, or was taken over while this process slept."""
    for count in itertools.count(1):
        if released.wait(RENEW):
            return
        with suppress(Exception):  # a store that cannot be reached may be back the next time
            if not _is_owner(lock, owner):
                return
            lock.fs.pipe_file(lock.path, f"{owner}\n{count}".encode())


def _not_writable(folder: StoragePath, error: OSError) -> InputError:
    return InputError(f"cannot write the run folder {folder}: {error.strerror or one_line(error)}")


def _in_use(folder: StoragePath, owner: str = "") -> InputError:
    by = f" ({owner})" if owner else ""
    return InputError(f"{folder} is in use by another process{by}: wait for it to end, or give another --out")
