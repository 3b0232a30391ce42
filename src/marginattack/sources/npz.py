"""Arrays in an .npz file, read row by row: nothing is unpickled, and nothing is unpacked that could fill the disk."""

import io
import os
import shutil
import struct
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.core.validation import ROUNDING as NOISE
from marginattack.errors import InputError, one_line
from marginattack.sources.abstract import Data, Options, check_labels, sha256

CHANNELS = (1, 3, 4)
LAYOUTS = ("nhw", "nhwc", "nchw")
FOLD, LARGE = 100, 2**30  # a member that grows more than this many times, and past this many bytes, is a bomb
CHUNK = 2**20
LONGEST = 2**16  # bytes of a header
BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError, ValueError)
LOOKED_AT = 64  # images whose range is checked before a run begins


class Array(NamedTuple):
    """An array in a file: where its first value lies, its type and its shape."""

    file: IO[bytes]
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def rows(self, first: int, count: int) -> NDArray[Any]:
        """``count`` rows from ``first`` on; read, not mapped, so that pages do not add up in memory."""
        width = prod(self.shape[1:]) * self.dtype.itemsize
        start, wanted = self.offset + first * width, count * width
        parts: list[bytes] = []
        while wanted:
            part = os.pread(self.file.fileno(), min(wanted, 2**30), start)
            if not part:
                raise InputError(f"{self.file.name}: became shorter while it was read: start again with the whole file")
            parts.append(part)
            start, wanted = start + len(part), wanted - len(part)
        return np.frombuffer(b"".join(parts), self.dtype).reshape(count, *self.shape[1:])

    def at_once(self) -> int:
        """How many rows a chunk holds, one at least."""
        return max(1, CHUNK // (prod(self.shape[1:]) * self.dtype.itemsize))

    def chunks(self) -> Iterator[bytes]:
        """All bytes, a bounded number at a time."""
        step = self.at_once()
        for first in range(0, self.shape[0], step):
            yield self.rows(first, min(step, self.shape[0] - first)).tobytes()


class Npz(Data):
    """The arrays x and y of an .npz file."""

    def __init__(self, name: str, x: Array, labels: Tensor, layout: str) -> None:
        height, width = x.shape[2:] if layout == "nchw" else x.shape[1:3]
        channels = {"nhw": 1, "nhwc": x.shape[-1], "nchw": x.shape[1]}[layout]
        super().__init__(name, (channels, height, width), None)
        self.x, self.labels, self.layout = x, labels, layout
        weakref.finalize(self, x.file.close)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Rows that follow one another are read at once, but no more than a chunk, so that copies stay small."""
        images = torch.empty(len(rows), *self.shape)
        done = 0
        for first, count in runs(rows, len(self), self.x.at_once()):
            images[done : done + count] = self.pixels(first, count)
            done += count
        return images, self.labels[torch.tensor(rows, dtype=torch.int64)]

    def pixels(self, first: int, count: int) -> Tensor:
        """Consecutive images in [0, 1], channels first."""
        values = self.x.rows(first, count)
        if self.x.dtype == np.uint8:
            images = torch.from_numpy(values.astype(np.float32)).div_(255)
        else:
            low, high = float(values.min()), float(values.max())
            if not (-NOISE <= low <= high <= 1 + NOISE):
                hint = "divide x by 255" if 0 <= low <= high <= 255 else "undo its normalisation"
                hint = hint if np.isfinite([low, high]).all() else "leave out what is not finite"
                raise InputError(
                    f"{self.name}: x holds values from {low:g} to {high:g}, and pixels are in [0, 1]: {hint}"
                )
            images = torch.from_numpy(values.astype(np.float32)).clamp_(0, 1)
        if self.layout == "nhw":
            return images.unsqueeze(1)
        return images.permute(0, 3, 1, 2) if self.layout == "nhwc" else images

    def digest(self) -> str:
        """Of the arrays, not of the file: compressed or not, it is the same data."""
        head = ("npz", self.x.dtype.str, self.x.shape, self.layout)
        return sha256(head, (chunk for part in (self.x.chunks(), [self.labels.numpy().tobytes()]) for chunk in part))


def runs(rows: Sequence[int], n: int, most: int) -> Iterator[tuple[int, int]]:
    """Rows as (first, count) of those that follow one another, ``most`` at a time."""
    first, count = -1, 0
    for row in rows:
        if not 0 <= row < n:
            raise IndexError(f"row {row} of {n}")
        if 0 < count < most and row == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = row, 1
    if count:
        yield first, count


def open_npz(source: str, options: Options) -> Data:
    """An .npz file with arrays x (uint8, or floats in [0, 1]) and y (class numbers)."""
    return npz(source, Path(source).expanduser())


def npz(name: str, path: Path) -> Npz:
    """The file's arrays, checked before any of them is unpacked."""
    if not path.is_file():
        raise InputError(f"{name}: no such file")
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        try:
            data = checked(name, file)
        except InputError:
            raise
        except BROKEN as error:
            raise InputError(
                f"{name}: is not a whole .npz file ({one_line(error)}): write it again with np.savez"
            ) from error
        if data.x.file is file:
            stack.pop_all()  # the data closes it
    return data


def checked(name: str, file: IO[bytes]) -> Npz:
    """The data in an open file: first what can be said from headers, then the labels, then the images."""
    with zipfile.ZipFile(file) as archive:
        found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if not {"x", "y"} <= found.keys():
            raise InputError(f"{name}: needs arrays x and y, and has {listed(list(found))}: np.savez(FILE, x=…, y=…)")
        x, y = (member(name, archive, file, found[key]) for key in "xy")
        check_types(name, x, y)
        layout = layout_of(name, x.shape, archive, found.get("layout"))
        y = unpacked(name, archive, found["y"], y)
        labels = y.rows(0, y.shape[0])
        if y.file is not file:
            y.file.close()
        check_labels(labels, f"{name}: y", "give each image its class")
        x = unpacked(name, archive, found["x"], x)
    data = Npz(name, x, torch.from_numpy(labels.astype(np.int64)), layout)
    for row in range(0, len(data), max(1, len(data) // LOOKED_AT)):
        data.pixels(row, 1)
    return data


def listed(names: list[str]) -> str:
    """The first names, for a message."""
    return ", ".join(map(repr, names[:8])) + (" …" if len(names) > 8 else "") if names else "none"


def plain(name: str, info: zipfile.ZipInfo) -> None:
    """Stored or deflated, as numpy writes: other ways of compression cannot be unpacked in bounded memory."""
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{name}: {info.filename!r} is encrypted or compressed in a way that numpy does not write: "
                      "write it again with np.savez")  # fmt: skip


def member(name: str, archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo) -> Array:
    """An array by its header alone, if what the archive says of its size agrees with it and is not a bomb."""
    plain(name, info)
    with archive.open(info) as stream:
        head, dtype, fortran, shape = npy_header(name, info.filename, stream.read(LONGEST))
    if dtype.hasobject or dtype.names:
        raise InputError(f"{name}: {info.filename!r} holds Python objects or records, which are never unpickled: "
                      "save arrays of numbers")  # fmt: skip
    if min(shape, default=0) < 1:
        raise InputError(f"{name}: {info.filename!r} has shape {shape}: it is empty or no array")
    if head + prod(shape) * dtype.itemsize != info.file_size:
        raise InputError(f"{name}: {info.filename!r} says {info.file_size} bytes, but its shape {shape} of {dtype} needs "
                      f"{head + prod(shape) * dtype.itemsize}: the file is broken or a zip bomb")  # fmt: skip
    if info.file_size > LARGE and info.file_size > FOLD * info.compress_size:
        raise InputError(f"{name}: {info.filename!r} grows from {info.compress_size} to {info.file_size} bytes, more than "
                      f"{FOLD}-fold and past 1 GiB, like a zip bomb: write it with np.savez, uncompressed")  # fmt: skip
    if fortran and len(shape) > 1:
        raise InputError(f"{name}: {info.filename!r} is in Fortran order, so no image lies in one piece: "
                      "save np.ascontiguousarray of it")  # fmt: skip
    file.seek(info.header_offset + 26)  # after it come the lengths of the member's name and extra field
    offset = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + head
    if info.compress_type == zipfile.ZIP_STORED and offset - head + info.file_size > archive.start_dir:
        raise InputError(f"{name}: {info.filename!r} says {info.file_size} bytes, more than the file has: it is broken")
    return Array(file, offset, dtype, shape)


def npy_header(name: str, filename: str, start: bytes) -> tuple[int, np.dtype[Any], bool, tuple[int, ...]]:
    """Length, type, order and shape of an .npy file from its first bytes; a header of gigabytes is not read."""
    if len(start) < 12 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2):
        raise InputError(f"{name}: {filename!r} is no array that np.savez writes: write it again with np.savez")
    length = struct.unpack("<H", start[8:10])[0] + 10 if start[6] == 1 else struct.unpack("<I", start[8:12])[0] + 12
    if length > LONGEST:
        raise InputError(f"{name}: {filename!r} has a header of {length} bytes: the file is broken")
    read = np.lib.format.read_array_header_1_0 if start[6] == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(io.BytesIO(start[8:length]))
    return length, dtype, fortran, shape


def check_types(name: str, x: Array, y: Array) -> None:
    """Types and lengths that can be measured."""
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise InputError(f"{name}: x is of {x.dtype}: pixels are uint8 in 0..255 or floats in [0, 1]")
    if y.dtype.kind not in "iu":
        raise InputError(f"{name}: y is of {y.dtype}: labels are class numbers, integers from 0 on")
    if len(y.shape) != 1:
        hint = "argmax(1) of it" if y.shape[-1] > 1 else "y.ravel()"
        raise InputError(f"{name}: y has shape {y.shape}, and one label an image is needed: save {hint}")
    if x.shape[0] != y.shape[0]:
        raise InputError(f"{name}: x has {x.shape[0]} images and y {y.shape[0]} labels: they must be as many")


def layout_of(name: str, shape: tuple[int, ...], archive: zipfile.ZipFile, info: zipfile.ZipInfo | None) -> str:
    """Where the channels are: said by an array ``layout``, or the one axis that is 1, 3 or 4 long."""
    if info is not None:
        plain(name, info)
        said = archive.read(info) if info.file_size < CHUNK else b""
        layout = str(np.load(io.BytesIO(said), allow_pickle=False)).lower()[:40]
        if layout not in LAYOUTS or len(layout) != len(shape):
            raise InputError(f"{name}: layout is {layout!r} for x of shape {shape}: it is one of {', '.join(LAYOUTS)}")
        return layout
    if len(shape) == 3:
        return "nhw"
    if len(shape) != 4:
        raise InputError(f"{name}: x has shape {shape}: images are (n, h, w), (n, h, w, c) or (n, c, h, w)")
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if first and last:
        raise InputError(f"{name}: x has shape {shape}, and its channels may be first or last: "
                      "say it with np.savez(…, layout='nchw') or 'nhwc'")  # fmt: skip
    if not first and not last:
        raise InputError(f"{name}: x has shape {shape}, with 1, 3 or 4 channels neither first nor last: reshape it, "
                      "or say it with np.savez(…, layout='nchw') or 'nhwc'")  # fmt: skip
    return "nchw" if first else "nhwc"


def unpacked(name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, array: Array) -> Array:
    """The array where its rows can be read: in the archive if stored, else in a temporary file without a name."""
    if info.compress_type == zipfile.ZIP_STORED:
        return array
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if info.file_size > free:
        raise InputError(f"{name}: {info.filename!r} needs {info.file_size} bytes in {folder}, which has {free}: "
                      "set TMPDIR to a larger disk, or write the file with np.savez, uncompressed")  # fmt: skip
    room = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the data is used)
    try:
        unpack(name, archive, info, room)
    except BaseException:
        room.close()
        raise
    return Array(room, info.file_size - prod(array.shape) * array.dtype.itemsize, array.dtype, array.shape)


def unpack(name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, room: IO[bytes]) -> None:
    """Unpack a member chunk by chunk, and no further than it says."""
    size = 0
    with archive.open(info) as stream:
        while size <= info.file_size and (chunk := stream.read(CHUNK)):
            size += len(chunk)
            try:
                room.write(chunk)
            except OSError as error:
                raise InputError(f"{name}: {info.filename!r} cannot be unpacked to {tempfile.gettempdir()} "
                              f"({one_line(error)}): set TMPDIR to a larger disk") from error  # fmt: skip
    room.flush()
    if size != info.file_size:
        raise InputError(f"{name}: {info.filename!r} unpacks to other than the {info.file_size} bytes it says: "
                      "the file is broken or a zip bomb")  # fmt: skip
