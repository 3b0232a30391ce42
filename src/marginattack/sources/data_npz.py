"""Arrays in an .npz file, read row by row. Nothing is unpickled, and no zip bomb is unpacked."""

import io
import shutil
import struct
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from marginattack.errors import InputError, one_line
from marginattack.sources.common import check_size
from marginattack.sources.data_arrays import (
    LARGER_DISK,
    MAX_GROWTH,
    MAX_HEADER,
    UNPACKED_BYTES,
    ArrayData,
    StoredArray,
    check_array,
    check_inputs,
    check_pairs,
    choose_layout,
    find_file,
    read_npy_header,
    temporary_file,
)
from marginattack.sources.data_base import CHUNK, Data, Options, check_labels, file_stamp, relative_names

UNCOMPRESSED = f"{LARGER_DISK}, or write the file uncompressed, with np.savez"


def open_npz(source: str, options: Options) -> Data:
    """Open an .npz file with arrays x and y, or of other names."""
    return read_npz(source, find_file(source, source), options)


def read_npz(name: str, path: Path, options: Options) -> ArrayData:
    """Open the arrays of a file after all checks. ``name`` is used in error messages."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        data: ArrayData = _open(name, file, options.max_gib, lambda archive: archive.data(options))
        if data.x.file is file:
            stack.pop_all()  # the data closes it
    return data


def read_array(name: str, path: str, key: str, max_gib: float | None) -> NDArray[Any]:
    """Read one array of numbers of an .npz file after all checks."""
    with find_file(name, path).open("rb") as file:
        array: NDArray[Any] = _open(name, file, max_gib, lambda archive: archive.values(key))
    return array


def _open(name: str, file: IO[bytes], max_gib: float | None, read: Any) -> Any:
    """Read something from an archive."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            return read(_Archive(name, archive, members, file, file_stamp(file.fileno()), max_gib))
    except InputError:
        raise
    except Exception as error:  # zipfile and numpy raise all kinds of errors on broken files
        hint = "write it again with np.savez"
        raise InputError(f"{name}: not a complete .npz file ({one_line(error)}): {hint}") from error


@dataclass(frozen=True)
class _Archive:
    """Checks an archive: first headers, then labels, then images. Messages start with ``name``."""

    name: str
    archive: zipfile.ZipFile
    members: dict[str, zipfile.ZipInfo]
    file: IO[bytes]
    opened: tuple[int, int]
    max_gib: float | None

    def data(self, options: Options) -> ArrayData:
        """Return the arrays of inputs and labels."""
        inputs, labels = options.features or "x", options.labels or "y"
        if not {inputs, labels} <= self.members.keys():
            hint = "save np.savez(FILE, x=…, y=…), or choose with --features NAME --labels NAME"
            raise self.error(f"needs arrays {inputs} and {labels}, but has {self.listing()}", hint)
        x, y = self.array(inputs), self.array(labels)
        check_inputs(self.name, x, options)
        check_pairs(self.name, x, y)
        layout = choose_layout(self.name, x.shape, options.layout or self.text("layout"))
        classes = check_labels(self.values(labels), f"{self.name}: {labels}")
        names = self.names(len(classes))
        x = self.unpack(inputs, x)
        return ArrayData(self.name, x, classes, layout, self.opened, raw=options.raw, names=names).survey()

    def listing(self) -> str:
        """The names of the first arrays, for errors."""
        return ", ".join(map(repr, list(self.members)[:8])) or "none"

    def error(self, problem: str, hint: str) -> InputError:
        """Return an error that names the file."""
        return InputError(f"{self.name}: {problem}: {hint}")

    def array(self, key: str) -> StoredArray:
        """Locate an array by its header; raise InputError if the sizes in the archive differ or for a zip bomb."""
        info = self.members[key]
        member, size = repr(info.filename), info.file_size
        start, shape, fortran, dtype = self.header(info)
        header = start.tell()
        check_array(f"{self.name}: {member}", shape, fortran, dtype)
        array = StoredArray(self.file, self.data_offset(info) + header, dtype, shape, self.opened)
        if header + array.nbytes != size:
            needed = f"its shape {shape} of {dtype} needs {header + array.nbytes}"
            raise self.error(f"{member} declares {size} bytes, but {needed}", "the file is broken or a zip bomb")
        if size > MAX_GROWTH * info.compress_size:
            what = f"{self.name}: {member}, which grows more than {MAX_GROWTH}-fold like a zip bomb,"
            check_size(what, size, UNPACKED_BYTES, self.max_gib)
        if info.compress_type == zipfile.ZIP_STORED and array.offset - header + size > self.archive.start_dir:
            raise self.error(f"{member} declares {size} bytes, more than the file has", "the file is broken")
        return array

    def header(self, info: zipfile.ZipInfo) -> tuple[io.BytesIO, tuple[int, ...], bool, np.dtype[Any]]:
        """Return the start of an array, read up to its first value, its shape, order and dtype."""
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # other methods cannot be unpacked in bounded memory
            problem = f"{info.filename!r} is encrypted, or compressed by a method that numpy does not use"
            raise self.error(problem, "write it again with np.savez")
        with self.archive.open(info) as stream:
            start = io.BytesIO(stream.read(MAX_HEADER))  # a header of gigabytes is not read
        return start, *read_npy_header(start)

    def data_offset(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of a member in the file: its local header ends with a name and an extra field."""
        self.file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", self.file.read(4))
        return info.header_offset + 30 + int(name) + int(extra)

    def text(self, key: str) -> str | None:
        """Return the start of a string that the archive may hold; None if there is none."""
        if key not in self.members:
            return None
        start, _, _, dtype = self.header(self.members[key])
        content = start.read()[: dtype.itemsize] if dtype.kind in "US" else b""
        return str(np.frombuffer(content, dtype)[0] if content else dtype).lower()[:40]

    def names(self, n: int) -> list[str] | None:
        """Return the names of the inputs, if the archive has an array ``names`` of strings."""
        if "names" not in self.members:
            return None
        values = self.values("names")
        if values.shape != (n,) or values.dtype.kind not in "US":
            content = f"{values.dtype} of shape {values.shape}"
            raise self.error(f"names are {content}", f"save {n} strings, or leave them out")
        return relative_names(
            [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in values]
        )

    def values(self, key: str) -> NDArray[Any]:
        """Return a whole array."""
        if key not in self.members:
            raise self.error(f"no array {key!r}", f"it has {self.listing()}")
        array = self.unpack(key, self.array(key))
        values = array.read(0, array.shape[0])
        if array.file is not self.file:
            array.file.close()
        return values

    def unpack(self, key: str, array: StoredArray) -> StoredArray:
        """Make the rows of an array readable: in the archive, or unpacked to an unnamed temporary file."""
        info = self.members[key]
        if info.compress_type == zipfile.ZIP_STORED:
            return array
        size = info.file_size
        with ExitStack() as stack:
            target = stack.enter_context(temporary_file(self.name, repr(info.filename), size, UNCOMPRESSED))
            try:
                with self.archive.open(info) as stream:  # zipfile stops at the size that the archive declares
                    shutil.copyfileobj(stream, target, CHUNK)
                    target.flush()
            except OSError as error:
                raise self.error(f"cannot unpack {info.filename!r} ({one_line(error)})", UNCOMPRESSED) from error
            if target.tell() != size:
                problem = f"{info.filename!r} does not unpack to the {size} bytes that it declares"
                raise self.error(problem, "the file is broken or a zip bomb")
            stack.pop_all()  # open as long as the data is used
        return array._replace(file=target, offset=size - array.nbytes, opened=file_stamp(target.fileno()))
