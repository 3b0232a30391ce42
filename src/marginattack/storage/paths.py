"""Where a run lies: a folder, or an address on an object store; how files are put there, whole or not at all.

A folder gets each file under another name, which is flushed and then renamed. An object store shows an object once all
of it has arrived: it is made on this machine first and then sent in one piece. Either way, whoever reads a name finds a
whole file or none, and who writes it again replaces all of it.
"""

import errno
import mmap
import os
import secrets
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PosixPath, PurePosixPath
from typing import IO, Any

from marginattack.errors import InputError, one_line

STORES = ("s3", "gs", "abfs", "abfss")


class Address(PosixPath):
    """A place on an object store, as ``s3://bucket/folder``, with what a run needs of a path.

    Addresses are made on the way (by ``/``, by ``parent``) and hold nothing but their parts. Folders are there once
    something is in them. Pathlib joins the two slashes; ``s3:/bucket`` is the same address.
    """

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        return str(self)

    def exists(self, **options: Any) -> bool:
        return self._kind() != "NotFound"

    def is_dir(self, **options: Any) -> bool:
        return self._kind() == "Directory"

    def is_file(self, **options: Any) -> bool:
        return self._kind() == "File"

    def resolve(self, strict: bool = False) -> "Address":
        return self

    def mkdir(self, *arguments: Any, **options: Any) -> None:
        """Nothing: a folder is there once something is in it."""

    def iterdir(self) -> Generator["Address", None, None]:
        yield from self._below(recursive=False)

    def glob(self, pattern: str, **options: Any) -> Iterator["Address"]:  # type: ignore[override]
        deep = "/" in pattern
        every = self._below(recursive=deep)
        return (path for path in every if path.is_below(self, pattern))

    def rglob(self, pattern: str, **options: Any) -> Iterator["Address"]:  # type: ignore[override]
        return (path for path in self._below(recursive=True) if PurePosixPath(path.name).match(pattern))

    def is_below(self, folder: "Address", pattern: str) -> bool:
        """Whether it lies under a folder as a pattern of as many parts says."""
        inside = PurePosixPath(*self.parts[len(folder.parts) :])
        return len(inside.parts) == len(PurePosixPath(pattern).parts) and inside.match(pattern)

    def read_bytes(self) -> bytes:
        system, path = self._system()
        with system.open_input_file(path) as file:
            return bytes(file.read())

    def read_text(self, *arguments: Any, **options: Any) -> str:
        return self.read_bytes().decode()

    def unlink(self, missing_ok: bool = False) -> None:
        system, path = self._system()
        try:
            system.delete_file(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def send(self, content: Any) -> None:
        """Put all of it there in one piece: whoever is interrupted has sent all or nothing.

        Not in the main thread, where Ctrl-C could come between opening and writing: a stream that is dropped is
        closed, and what has arrived until then, be it nothing, is an object.
        """
        with ThreadPoolExecutor(1) as sender:
            sender.submit(self._send, content).result()

    def _send(self, content: Any) -> None:
        system, path = self._system()
        with system.open_output_stream(path) as stream:
            stream.write(content)

    def _below(self, *, recursive: bool) -> Iterator["Address"]:
        from pyarrow.fs import FileSelector

        system, path = self._system()
        for info in system.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive)):
            yield self / info.path[len(path) :].lstrip("/")

    def _kind(self) -> str:
        system, path = self._system()
        return str(system.get_file_info(path).type.name)

    def _system(self) -> tuple[Any, str]:
        return _connected(self.parts[0], self.parts[1] if len(self.parts) > 1 else "", self._inside())

    def _inside(self) -> str:
        return "/".join(self.parts[2:])


def place(path: str | os.PathLike[str]) -> Path:
    """A folder of this machine, or an address on an object store."""
    if isinstance(path, Address):
        return path
    text = os.fspath(path)
    scheme, colon, rest = text.partition(":/")
    if colon and scheme == "file":
        return Path("/" + rest.lstrip("/"))
    if colon and scheme in STORES:
        if "?" in text or not rest.strip("/"):
            hint = "write s3://bucket/folder, and state endpoints and keys in the environment (AWS_ENDPOINT_URL, …)"
            raise InputError(f"{text} is no address of a run: {hint}")
        return Address(text)
    if "://" in text:
        raise InputError(f"{text} is on no store that is known: give a folder, or an address on {', '.join(STORES)}")
    return Path(text)


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which is at its place once all of it is, and not before."""
    if isinstance(path, Address):
        with tempfile.TemporaryFile() as file:
            yield file
            file.flush()
            path.send(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return
    # the name is nobody else's: workers of one run share the folder, and on several machines process numbers repeat
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(scratch, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    _flush(path.parent)


def make(folder: Path) -> None:
    """A folder, and those above it, on the disk."""
    if not isinstance(folder, Address) and not folder.exists():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        _flush(folder.parent)


def sweep(folder: Path) -> None:
    """Take away what was begun and never finished. Nobody else may be at work here, or must not mind."""
    if not isinstance(folder, Address):
        for kind in ("parquet", "json"):
            for scratch in folder.rglob(f".*.{kind}.*.tmp"):
                scratch.unlink(missing_ok=True)


def is_full(error: BaseException) -> bool:
    """Whether this error says that there is no room left to write into."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@lru_cache(maxsize=64)
def _system_of(scheme: str, bucket: str) -> tuple[Any, str]:
    """The store behind an address, and its root there. Keys, regions and endpoints it takes from the environment."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        system, root = FileSystem.from_uri(f"{scheme}//{bucket}")
        return system, root
    except (pa.ArrowException, OSError, ImportError, ValueError) as error:
        reason = one_line(error)
        raise InputError(f"{scheme}//{bucket} cannot be reached: {reason}") from None


def _connected(scheme: str, bucket: str, inside: str) -> tuple[Any, str]:
    system, root = _system_of(scheme, bucket)
    return system, f"{root.rstrip('/')}/{inside}".rstrip("/")


def _flush(folder: Path) -> None:
    """What a folder lists, on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
