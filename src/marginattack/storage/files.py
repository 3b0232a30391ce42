"""Atomic writes: a reader sees a complete file or none.

A local file is written under a temporary name, flushed to disk and renamed. An object appears in a store only when its
upload is complete, so its content is written to a temporary file first and then uploaded.
"""

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from marginattack.storage.paths import StoragePath, is_remote


@contextmanager
def write_atomically(path: StoragePath) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces ``path`` when the block ends, and is discarded if it raises."""
    if not isinstance(path, Path):
        with tempfile.NamedTemporaryFile() as file:
            yield file
            file.flush()
            path.fs.put_file(file.name, path.path)
        return
    # A random name: the workers of a run share its folder, and process ids repeat across machines.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with _create(temporary, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _create(temporary: Path, path: Path) -> IO[bytes]:
    """Create a temporary file, never through a link; an error names the file that it stands for."""
    try:
        return open(temporary, "xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def make_folder(folder: StoragePath) -> None:
    """Create a folder and its parents, flushed to disk. Object stores have no folders."""
    if isinstance(folder, Path) and not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _flush_folder(folder.parent)


def remove_temporary_files(folder: StoragePath) -> None:
    """Delete temporary files of interrupted writes of JSON and Parquet files."""
    if not is_remote(folder):
        for kind in ("parquet", "json"):
            for temporary in folder.rglob(f".*.{kind}.*.tmp"):
                temporary.unlink(missing_ok=True)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that no space is left, or that a quota or the largest file size is reached."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _flush_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk; Windows cannot open folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
