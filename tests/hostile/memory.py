"""How much memory a block of code takes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def read_status(key: str) -> int:
    """A number of /proc/self/status, in bytes."""
    match = re.search(rf"{key}:\s+(\d+) kB", STATUS.read_text())
    assert match
    return 1024 * int(match[1])


@contextmanager
def limited_memory(limit: int = 2**29) -> Iterator[None]:
    """Fail if the memory of this process grows by more than the limit, even for a moment."""
    CLEAR.write_text("5")  # resets the high-water mark
    before = read_status("VmRSS")
    yield
    assert read_status("VmHWM") - before < limit
