"""One writer per run folder.

A local folder is locked with ``flock``, which the kernel releases when the process ends: the driver of a run holds
``.lock`` exclusively, and its workers share ``.workers``, so that a new driver waits for the workers of a dead one. On
an object store the lock is the object ``.lock``, created only if it does not exist (a conditional write) and renewed
every ``RENEW`` seconds by its owner. A lock that was not renewed for ``STALE`` seconds belongs to a dead process and is
replaced. Both kinds name their owner, which writers check first (``Lease.check``): a process that was suspended while
another took over writes nothing more.
"""

import errno
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from marginattack.errors import InputError, one_line
from marginattack.storage.paths import StoragePath, parse_path

RENEW = 5.0
STALE = 30.0
POLL = 0.1


@dataclass(frozen=True)
class Lease:
    """The right to write to a run folder: held by the driver of a run and, through it, by its workers."""

    folder: StoragePath
    owner: str

    def check(self) -> None:
        """Raise InputError if another process has taken over."""
        if not _is_owner(self.folder / ".lock", self.owner):
            raise InputError(f"{self.folder} was taken over by another process: leave it to that process")


@contextmanager
def lock_folder(path: str | StoragePath) -> Iterator[Lease]:
    """Create the folder if it does not exist and keep other processes from writing to it."""
    folder = parse_path(path)
    lease = Lease(folder, f"{socket.gethostname()}, process {os.getpid()}\n{secrets.token_hex(8)}")
    with _lock_file(folder, lease.owner) if isinstance(folder, Path) else _lock_object(folder, lease.owner):
        yield lease


@contextmanager
def join_lease(folder: StoragePath, owner: str) -> Iterator[Lease]:
    """Share the lease of a driver in another process. A local folder cannot be taken over until this process ends."""
    lease = Lease(folder, owner)
    if not isinstance(folder, Path):
        lease.check()
        yield lease
        return
    import fcntl

    with _open_lock(folder / ".workers") as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        lease.check()
        yield lease


@contextmanager
def _lock_file(folder: Path, owner: str) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        raise InputError(f"cannot lock {folder}: run folders need a POSIX system such as Linux, macOS or WSL") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock, workers = _open_lock(folder / ".lock"), _open_lock(folder / ".workers")
    except OSError as error:
        raise _not_writable(folder, error) from None
    with lock, workers:
        if not _try_lock(lock):
            raise _in_use(folder)
        deadline = time.monotonic() + STALE
        while not _try_lock(workers):
            if time.monotonic() > deadline:
                raise InputError(f"workers of an interrupted run still use {folder}: wait for them to end, or end them")
            time.sleep(POLL)
        lock.truncate()
        lock.write(owner)
        lock.flush()
        fcntl.flock(workers, fcntl.LOCK_UN)
        yield


def _try_lock(file: IO[str]) -> bool:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(path: Path) -> IO[str]:
    """Open or create a lock file; raise InputError if it is a link."""
    file = None
    try:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")  # noqa: SIM115
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    if file is None or os.fstat(file.fileno()).st_nlink != 1:
        raise InputError(f"{path} is a link: remove it, or give another --out")
    return file


@contextmanager
def _lock_object(folder: StoragePath, owner: str) -> Iterator[None]:
    lock = folder / ".lock"
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
        with suppress(Exception):  # if the store cannot be reached, the lock expires
            if _is_owner(lock, owner):
                lock.unlink()


def _acquire(lock: Any, owner: str) -> None:
    """Create the lock object. If it exists, wait until it is released or stale; raise InputError if it is renewed."""
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
    if seen is not None:  # another process may have replaced the same stale lock, and this one's with it
        time.sleep(min(1.0, RENEW))
        if not _is_owner(lock, owner):
            raise _in_use(lock.parent)


def _create(lock: Any, owner: str) -> bool:
    """Write the lock object unless it exists; return whether it was written."""
    try:
        lock.fs.pipe_file(lock.path, owner.encode(), mode="create")
    except FileExistsError:
        return False
    return True


def _read(lock: Any) -> str | None:
    try:  # an object in one request: if it were opened first, it might be renewed before it is read
        return str(lock.fs.cat_file(lock.path).decode() if hasattr(lock, "fs") else lock.read_text())
    except FileNotFoundError:
        return None


def _is_owner(lock: Any, owner: str) -> bool:
    return (_read(lock) or "").startswith(owner)


def _renew(lock: Any, owner: str, released: threading.Event) -> None:
    """Renew the lock object every few seconds until it is released or another process has taken over."""
    for count in itertools.count(1):
        if released.wait(RENEW):
            return
        with suppress(Exception):  # the store may be reachable again the next time
            if not _is_owner(lock, owner):
                return
            lock.fs.pipe_file(lock.path, f"{owner}\n{count}".encode())


def _not_writable(folder: StoragePath, error: OSError) -> InputError:
    return InputError(f"cannot write the run folder {folder}: {error.strerror or one_line(error)}")


def _in_use(folder: StoragePath, owner: str = "") -> InputError:
    by = f" ({owner})" if owner else ""
    return InputError(f"{folder} is in use by another process{by}: wait for it to end, or give another --out")
