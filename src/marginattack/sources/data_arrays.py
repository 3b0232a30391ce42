"""Arrays in files, read row by row: inputs of any shape with their labels, and checks of both."""

import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.core.validation import ROUNDING
from marginattack.errors import InputError
from marginattack.sources.common import sha256
from marginattack.sources.data_base import CHUNK, Data, Options, check_unchanged

CHANNELS = (1, 3, 4)
LAYOUTS = ("nhw", "nhwc", "nchw", "as-is")
MAX_HEADER = 2**16  # bytes
MAX_GROWTH, UNPACKED_BYTES = 100, 2**26  # files may grow by this factor, or to this size, which --max-gib raises
SURVEYED = 64  # inputs whose range is checked before a run starts
LARGER_DISK = "set TMPDIR to a larger disk"


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


class ArrayData(Data):
    """An array of inputs and their labels. Values are pixels unless ``raw``."""

    labels: Tensor

    def __init__(
        self, name: str, x: StoredArray, labels: Tensor, layout: str, opened: tuple[int, int], *, raw: bool = False,
        classes: list[str] | None = None, names: list[str] | None = None, features: list[str] | None = None,
    ) -> None:  # fmt: skip
        shape = [*x.shape[1:]]
        shape = {"nhw": [1, *shape], "nhwc": [shape[-1], *shape[:-1]]}.get(layout, shape)
        super().__init__(name, shape, classes, names=names, features=features)
        self.x, self.layout, self.opened, self.raw = x, layout, opened, raw
        self.labels = labels
        weakref.finalize(self, x.file.close)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read consecutive rows together, at most a chunk at a time, so that copies stay small."""
        wanted, done = np.asarray(rows, dtype=np.int64), 0
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {len(self)}")
        inputs, most = torch.empty(len(wanted), *self.shape), self.x.rows_per_chunk
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):
            for start in range(0, len(run), most):
                count = min(most, len(run) - start)
                inputs[done : done + count] = self.inputs(int(run[start]), count)
                done += count
        return inputs, self.labels[torch.from_numpy(wanted)]

    def inputs(self, first: int, count: int) -> Tensor:
        """Return consecutive inputs, images with channels first, in [0, 1] unless they are raw."""
        values = self.x.read(first, count)
        inputs = torch.from_numpy(values.astype(np.float32))
        low, high = float(inputs.min()), float(inputs.max())
        if not np.isfinite([low, high]).all():
            row = first + int((~torch.isfinite(inputs)).flatten(1).any(1).nonzero()[0])
            raise InputError(f"{self.name}: x holds NaN or infinity in row {row}: clean the data")
        if not self.raw and self.x.dtype == np.uint8:
            inputs.div_(255)
        elif not self.raw:
            if not (-ROUNDING <= low <= high <= 1 + ROUNDING):
                hint = "divide x by 255" if 0 <= low <= high <= 255 else "undo its normalisation"
                if len(self.shape) < 3:
                    hint = "state the bounds of other data with --bounds LO,HI, or -inf,inf"
                raise InputError(f"{self.name}: x spans {low:g} to {high:g}, but pixels are in [0, 1]: {hint}")
            inputs.clamp_(0, 1)
        if self.layout == "nhw":
            return inputs.unsqueeze(1)
        return inputs.permute(0, 3, 1, 2) if self.layout == "nhwc" else inputs

    def digest(self) -> str:
        """Hash the arrays, not the file: the same data has the same digest, compressed or not."""
        chunks = (chunk for part in (self.x.chunks(), [self.labels.numpy().tobytes()]) for chunk in part)
        raw = ("raw",) if self.raw else ()
        return sha256("npz", self.x.dtype.str, self.x.shape, self.layout, *raw, chunks=chunks)

    def stamp(self) -> str:
        """Hash size and time of the file."""
        return sha256("npz", *self.opened)

    def survey(self) -> "ArrayData":
        """Check some inputs before a run starts."""
        for row in range(0, len(self), max(1, len(self) // SURVEYED)):
            self.inputs(row, 1)
        return self


def read_npy_header(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array up to its first value: shape, whether it is in Fortran order, and dtype."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype


def check_array(where: str, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> None:
    """Raise InputError for an array that cannot be read row by row without unpickling."""
    if dtype.hasobject or dtype.names:
        raise InputError(f"{where} holds Python objects or records: save numbers; pickles are never unpickled")
    if min(shape, default=0) < 1:
        raise InputError(f"{where} has shape {shape}: save an array that is not empty")
    if fortran and len(shape) > 1:
        hint = "save np.ascontiguousarray(x)"
        raise InputError(f"{where} is in Fortran order, so images are not contiguous: {hint}")


def check_inputs(name: str, x: StoredArray, options: Options) -> None:
    """Raise InputError for inputs of an unsupported type."""
    if x.dtype != np.uint8 and x.dtype.kind != "f" and not (options.raw and x.dtype.kind in "iub"):
        hint = "pixels are uint8 in 0..255 or floats in [0, 1]; state the bounds of other data with --bounds LO,HI"
        raise InputError(f"{name}: x is {x.dtype}: {hint}")


def check_pairs(name: str, x: StoredArray, y: StoredArray) -> None:
    """Raise InputError for labels that are not one class index per input."""
    if y.dtype.kind not in "iu":
        raise InputError(f"{name}: y is {y.dtype}: labels are integer class indices, starting at 0")
    if len(y.shape) != 1:
        hint = "y.argmax(1)" if y.shape[-1] > 1 else "y.ravel()"
        raise InputError(f"{name}: y has shape {y.shape}, not one label per image: save {hint}")
    if x.shape[0] != y.shape[0]:
        raise InputError(f"{name}: x has {x.shape[0]} images but y has {y.shape[0]} labels: give one label per image")


def choose_layout(name: str, shape: tuple[int, ...], stated: str | None) -> str:
    """Return the stated layout, or infer it: the channel axis of an image has length 1, 3 or 4.

    Rows of features, audio of one or two channels, and arrays of five or more axes keep their layout.
    """
    if stated is not None:
        if stated not in LAYOUTS or (stated != "as-is" and len(stated) != len(shape)):
            raise InputError(f"{name}: layout is {stated!r} for x of shape {shape}: choose one of {', '.join(LAYOUTS)}")
        return stated
    if len(shape) == 1:
        raise InputError(f"{name}: x has shape {shape}, one number per input: save x[:, None] if this is intended")
    if len(shape) == 3:
        return "as-is" if shape[1] in (1, 2) else "nhw"
    if len(shape) != 4:
        return "as-is"
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if first == last:
        problem = "channels may be first or last" if first else "neither the second nor the last axis has 1, 3 or 4"
        hint = "state np.savez(…, layout='nchw') or 'nhwc', or pass --layout"
        raise InputError(f"{name}: x has shape {shape}, and {problem}: {hint}")
    return "nchw" if first else "nhwc"


def temporary_file(name: str, what: str, size: int, hint: str = LARGER_DISK) -> IO[bytes]:
    """Return an unnamed temporary file; raise InputError if the disk has no room for ``size`` bytes."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(f"{name}: {what} needs {size} bytes in {folder}, which has {free}: {hint}")
    return tempfile.TemporaryFile()


def find_file(name: str, source: str) -> Path:
    """Return the path of a file; raise InputError if it does not exist."""
    path = Path(source).expanduser()
    if not path.is_file():
        raise InputError(f"{name}: no such file: check the path")
    return path
