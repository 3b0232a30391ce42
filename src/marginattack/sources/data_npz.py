"""Arrays in an .npz file, read row by row. Nothing is unpickled, and no zip bomb is unpacked."""

import io
import os
import shutil
import struct
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.core.validation import ROUNDING
from marginattack.errors import InputError, one_line
from marginattack.sources.common import check_size, sha256
from marginattack.sources.data_base import CHUNK, Data, Options, check_labels, check_unchanged, file_stamp

CHANNELS = (1, 3, 4)
LAYOUTS = ("nhw", "nhwc", "nchw")
MAX_GROWTH, UNPACKED_BYTES = 100, 2**26  # a member may grow so much, or to so many bytes; --max-gib raises the latter
MAX_HEADER = 2**16  # bytes
SURVEYED = 64  # images whose range is checked before a run starts


class StoredArray(NamedTuple):
    """An array in a file: the offset of its first value, its dtype and its shape."""

    file: IO[bytes]
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    opened: tuple[int, int]  # size and time of the file

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def rows_per_chunk(self) -> int:
        """How many rows are read at a time."""
        return max(1, CHUNK // (self.nbytes // self.shape[0]))

    def read(self, first: int, count: int) -> NDArray[Any]:
        """Read consecutive rows. They are read, not mapped, so that memory does not grow with the pages touched."""
        row = self.nbytes // self.shape[0]
        content = os.pread(self.file.fileno(), count * row, self.offset + first * row)
        check_unchanged(self.file.fileno(), self.opened, str(self.file.name))
        return np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes, a bounded number at a time."""
        for first in range(0, self.shape[0], self.rows_per_chunk):
            yield self.read(first, min(self.rows_per_chunk, self.shape[0] - first)).tobytes()


class NpzData(Data):
    """The arrays x and y of an .npz file."""

    def __init__(self, name: str, x: StoredArray, labels: Tensor, layout: str, opened: tuple[int, int]) -> None:
        height, width = x.shape[2:] if layout == "nchw" else x.shape[1:3]
        channels = {"nhw": 1, "nhwc": x.shape[-1], "nchw": x.shape[1]}[layout]
        super().__init__(name, (channels, height, width), None)
        self.x, self.layout, self.opened = x, layout, opened
        self.labels: Tensor = labels
        weakref.finalize(self, x.file.close)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read consecutive rows together, at most a chunk at a time, so that copies stay small."""
        wanted, done = np.asarray(rows, dtype=np.int64), 0
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {len(self)}")
        images, most = torch.empty(len(wanted), *self.shape), self.x.rows_per_chunk
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):
            for start in range(0, len(run), most):
                count = min(most, len(run) - start)
                images[done : done + count] = self.pixels(int(run[start]), count)
                done += count
        return images, self.labels[torch.from_numpy(wanted)]

    def pixels(self, first: int, count: int) -> Tensor:
        """Return consecutive images in [0, 1], channels first."""
        values = self.x.read(first, count)
        images = torch.from_numpy(values.astype(np.float32))
        if self.x.dtype == np.uint8:
            images.div_(255)
        else:
            low, high = float(values.min()), float(values.max())
            if not (-ROUNDING <= low <= high <= 1 + ROUNDING):
                hint = "divide x by 255" if 0 <= low <= high <= 255 else "undo its normalisation"
                hint = hint if np.isfinite([low, high]).all() else "remove the values that are not finite"
                raise InputError(f"{self.name}: x spans {low:g} to {high:g}, but pixels are in [0, 1]: {hint}")
            images.clamp_(0, 1)
        if self.layout == "nhw":
            return images.unsqueeze(1)
        return images.permute(0, 3, 1, 2) if self.layout == "nhwc" else images

    def digest(self) -> str:
        """Hash the arrays, not the file: the same data has the same digest, compressed or not."""
        chunks = (chunk for part in (self.x.chunks(), [self.labels.numpy().tobytes()]) for chunk in part)
        return sha256("npz", self.x.dtype.str, self.x.shape, self.layout, chunks=chunks)

    def stamp(self) -> str:
        """Hash size and time of the file."""
        return sha256("npz", *self.opened)


def open_npz(source: str, options: Options) -> Data:
    """Open an .npz file with arrays x (uint8, or floats in [0, 1]) and y (class indices)."""
    return read_npz(source, Path(source).expanduser(), options)


def read_npz(name: str, path: Path, options: Options) -> NpzData:
    """Open the arrays of a file after all checks. ``name`` is used in error messages."""
    if not path.is_file():
        raise InputError(f"{name}: no such file: check the path")
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        try:
            with zipfile.ZipFile(file) as archive:
                data = _Reader(name, archive, file, file_stamp(file.fileno()), options.max_gib).data()
        except InputError:
            raise
        except Exception as error:  # zipfile and numpy raise all kinds of errors on broken files
            hint = "write it again with np.savez"
            raise InputError(f"{name}: not a complete .npz file ({one_line(error)}): {hint}") from error
        if data.x.file is file:
            stack.pop_all()  # the data closes it
    return data


@dataclass(frozen=True)
class _Reader:
    """Checks an archive: first headers, then labels, then images. Messages start with ``name``."""

    name: str
    archive: zipfile.ZipFile
    file: IO[bytes]
    opened: tuple[int, int]
    max_gib: float | None

    def data(self) -> NpzData:
        """Return the arrays x and y."""
        members = {info.filename.removesuffix(".npy"): info for info in self.archive.infolist()}
        if not {"x", "y"} <= members.keys():
            names = ", ".join(map(repr, list(members)[:8])) or "none"
            raise self.error(f"needs arrays x and y, but has {names}", "save np.savez(FILE, x=…, y=…)")
        x, y = (self.array(members[key]) for key in "xy")
        self.check_types(x, y)
        layout = self.layout(x.shape, members.get("layout"))
        y = self.unpack(members["y"], y)
        labels = check_labels(y.read(0, y.shape[0]), f"{self.name}: y")
        if y.file is not self.file:
            y.file.close()
        data = NpzData(self.name, self.unpack(members["x"], x), labels, layout, self.opened)
        for row in range(0, len(data), max(1, len(data) // SURVEYED)):
            data.pixels(row, 1)
        return data

    def error(self, problem: str, hint: str) -> InputError:
        """Return an error that names the file."""
        return InputError(f"{self.name}: {problem}: {hint}")

    def array(self, info: zipfile.ZipInfo) -> StoredArray:
        """Locate an array by its header, if the sizes in the archive agree with it and it is no zip bomb."""
        member, size = repr(info.filename), info.file_size
        self.check_compression(info)
        start, shape, fortran, dtype = self.header(info)
        header = start.tell()
        if dtype.hasobject or dtype.names:
            raise self.error(f"{member} holds Python objects or records", "save numbers; pickles are never unpickled")
        if min(shape, default=0) < 1:
            raise self.error(f"{member} has shape {shape}", "it must be an array that is not empty")
        array = StoredArray(self.file, self.data_offset(info) + header, dtype, shape, self.opened)
        if header + array.nbytes != size:
            needed = f"its shape {shape} of {dtype} needs {header + array.nbytes}"
            raise self.error(f"{member} declares {size} bytes, but {needed}", "the file is broken or a zip bomb")
        if size > MAX_GROWTH * info.compress_size:
            what = f"{self.name}: {member}, which grows more than {MAX_GROWTH}-fold like a zip bomb,"
            check_size(what, size, UNPACKED_BYTES, self.max_gib)
        if fortran and len(shape) > 1:
            raise self.error(
                f"{member} is in Fortran order, so images are not contiguous", "save np.ascontiguousarray(x)"
            )
        if info.compress_type == zipfile.ZIP_STORED and array.offset - header + size > self.archive.start_dir:
            raise self.error(f"{member} declares {size} bytes, more than the file has", "the file is broken")
        return array

    def header(self, info: zipfile.ZipInfo) -> tuple[io.BytesIO, tuple[int, ...], bool, np.dtype[Any]]:
        """Return the start of an array, read up to its first value, its shape, order and dtype."""
        with self.archive.open(info) as stream:
            start = io.BytesIO(stream.read(MAX_HEADER))  # a header of gigabytes is not read
        version = np.lib.format.read_magic(start)
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        return start, *read(start)

    def check_compression(self, info: zipfile.ZipInfo) -> None:
        """Stored or deflated, as numpy writes: other methods cannot be unpacked in bounded memory."""
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problem = f"{info.filename!r} is encrypted, or compressed by a method that numpy does not use"
            raise self.error(problem, "write it again with np.savez")

    def data_offset(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of a member in the file: its local header ends with a name and an extra field."""
        self.file.seek(info.header_offset + 26)
        name, extra = struct.unpack("<HH", self.file.read(4))
        return info.header_offset + 30 + int(name) + int(extra)

    def check_types(self, x: StoredArray, y: StoredArray) -> None:
        """Check that images and labels have types and lengths that can be measured."""
        if x.dtype != np.uint8 and x.dtype.kind != "f":
            raise self.error(f"x is {x.dtype}", "pixels are uint8 in 0..255 or floats in [0, 1]")
        if y.dtype.kind not in "iu":
            raise self.error(f"y is {y.dtype}", "labels are integer class indices, starting at 0")
        if len(y.shape) != 1:
            hint = "y.argmax(1)" if y.shape[-1] > 1 else "y.ravel()"
            raise self.error(f"y has shape {y.shape}, not one label per image", f"save {hint}")
        if x.shape[0] != y.shape[0]:
            raise self.error(f"x has {x.shape[0]} images but y has {y.shape[0]} labels", "they must pair up")

    def layout(self, shape: tuple[int, ...], info: zipfile.ZipInfo | None) -> str:
        """Return the layout that the array ``layout`` states, or infer it: the channel axis has length 1, 3 or 4."""
        if info is not None:
            self.check_compression(info)
            start, _, _, dtype = self.header(info)
            content = start.read()[: dtype.itemsize] if dtype.kind in "US" else b""
            layout = str(np.frombuffer(content, dtype)[0] if content else dtype).lower()[:40]
            if layout not in LAYOUTS or len(layout) != len(shape):
                raise self.error(f"layout is {layout!r} for x of shape {shape}", f"choose one of {', '.join(LAYOUTS)}")
            return layout
        if len(shape) == 3:
            return "nhw"
        if len(shape) != 4:
            raise self.error(f"x has shape {shape}", "images are (n, h, w), (n, h, w, c) or (n, c, h, w)")
        first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
        if first == last:
            problem = "channels may be first or last" if first else "neither the second nor the last axis has 1, 3 or 4"
            raise self.error(f"x has shape {shape}, and {problem}", "state np.savez(…, layout='nchw') or 'nhwc'")
        return "nchw" if first else "nhwc"

    def unpack(self, info: zipfile.ZipInfo, array: StoredArray) -> StoredArray:
        """Return the array where its rows can be read: in the archive, or unpacked to an unnamed temporary file."""
        if info.compress_type == zipfile.ZIP_STORED:
            return array
        folder, size = tempfile.gettempdir(), info.file_size
        hint = "set TMPDIR to a larger disk, or write the file uncompressed, with np.savez"
        free = shutil.disk_usage(folder).free
        if size > free:
            raise self.error(f"{info.filename!r} needs {size} bytes in {folder}, which has {free}", hint)
        with ExitStack() as stack:
            target = stack.enter_context(tempfile.TemporaryFile())
            try:
                with self.archive.open(info) as stream:  # zipfile stops at the size that the archive declares
                    shutil.copyfileobj(stream, target, CHUNK)
                    target.flush()
            except OSError as error:
                raise self.error(f"cannot unpack {info.filename!r} to {folder} ({one_line(error)})", hint) from error
            if target.tell() != size:
                problem = f"{info.filename!r} does not unpack to the {size} bytes that it declares"
                raise self.error(problem, "the file is broken or a zip bomb")
            stack.pop_all()  # open as long as the data is used
        return array._replace(file=target, offset=size - array.nbytes, opened=file_stamp(target.fileno()))
