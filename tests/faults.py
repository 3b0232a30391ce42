"""What goes wrong in the process of a command; called there before the command."""

import os
import resource
import signal
from typing import Any


def crash_before_rename(number: int) -> None:
    """End the process, as a kill does, before it renames a file for the given time, counted from 0."""
    rename, left = os.replace, iter(range(number))

    def replace(source: Any, target: Any) -> None:
        if next(left, None) is None:
            os._exit(137)
        rename(source, target)

    os.replace = replace  # type: ignore[assignment]


def limit_file_size(limit: int) -> None:
    """Let writes beyond this many bytes of a file fail."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def expire_locks(seconds: float) -> None:
    """Take a lock on an object store for that of a dead process after this time."""
    from marginattack.storage import lock

    lock.STALE = seconds
