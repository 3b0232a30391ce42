"""Arrays in .npy and .safetensors files, read row by row. Nothing is unpickled."""

import io
import json
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from marginattack.errors import InputError, one_line
from marginattack.sources.data_arrays import (
    MAX_HEADER,
    ArrayData,
    StoredArray,
    check_array,
    check_inputs,
    check_pairs,
    choose_layout,
    find_file,
    read_npy_header,
)
from marginattack.sources.data_base import Data, Options, check_labels, file_stamp
from marginattack.sources.data_folder import read_label_list

MAX_TENSORS_HEADER = 2**20  # bytes of the JSON that a .safetensors file begins with
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1"}


def open_npy(source: str, options: Options) -> Data:
    """Open an .npy file of inputs, with the labels in another file."""
    if options.labels is None:
        raise InputError(f"{source}: an .npy file holds no labels: pass --labels FILE.npy or FILE.txt")
    with ExitStack() as stack:
        file = stack.enter_context(find_file(source, source).open("rb"))
        try:
            start = io.BytesIO(file.read(MAX_HEADER))
            shape, fortran, dtype = read_npy_header(start)
        except Exception as error:
            raise InputError(
                f"{source}: not a complete .npy file ({one_line(error)}): write it with np.save"
            ) from error
        check_array(source, shape, fortran, dtype)
        x = StoredArray(file, start.tell(), dtype, shape, file_stamp(file.fileno()))
        if x.offset + x.nbytes != x.opened[0]:
            needed = f"its shape {shape} of {dtype} needs {x.offset + x.nbytes}"
            raise InputError(f"{source}: the file has {x.opened[0]} bytes, but {needed}: write it again with np.save")
        labels = read_label_list(Path(options.labels).expanduser(), shape[0])
        data = _make(source, x, np.asarray(labels, dtype=np.int64), options)
        stack.pop_all()  # the data closes it
    return data


def open_safetensors(source: str, options: Options) -> Data:
    """Open a .safetensors file with tensors x and y, or with other names."""
    with ExitStack() as stack:
        file = stack.enter_context(find_file(source, source).open("rb"))
        try:
            tensors, offset = _read_tensors_header(file)
        except Exception as error:
            hint = "write it again with safetensors.numpy.save_file"
            raise InputError(f"{source}: not a .safetensors file ({one_line(error)}): {hint}") from error
        inputs, labels = options.features or "x", options.labels or "y"
        if not {inputs, labels} <= tensors.keys():
            names = ", ".join(map(repr, list(tensors)[:8])) or "none"
            hint = 'save {"x": …, "y": …}, or choose with --features NAME --labels NAME'
            raise InputError(f"{source}: needs tensors {inputs} and {labels}, but has {names}: {hint}")
        x, y = (_locate(f"{source}: {key!r}", tensors[key], offset, file) for key in (inputs, labels))
        check_pairs(source, x, y)
        data = _make(source, x, y.read(0, y.shape[0]), options)
        stack.pop_all()  # the data closes it
    return data


def _make(source: str, x: StoredArray, labels: NDArray[Any], options: Options) -> ArrayData:
    check_inputs(source, x, options)
    layout = choose_layout(source, x.shape, options.layout)
    data = ArrayData(source, x, check_labels(labels, f"{source}: labels"), layout, x.opened, raw=options.raw)
    return data.survey()


def _read_tensors_header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """Return the header of a file, by name of the tensor, and the offset of their bytes."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MAX_TENSORS_HEADER:
        raise ValueError(f"its header has {length} bytes")
    tensors = json.loads(file.read(length))
    if not isinstance(tensors, dict):
        raise ValueError("its header is not a JSON object")
    return {name: about for name, about in tensors.items() if name != "__metadata__"}, 8 + length


def _locate(where: str, about: Any, offset: int, file: IO[bytes]) -> StoredArray:
    """Locate a tensor; raise InputError unless its size agrees with its shape and the file."""
    try:
        kind, shape, (first, last) = about["dtype"], tuple(map(int, about["shape"])), map(int, about["data_offsets"])
    except (TypeError, ValueError, LookupError) as error:
        raise InputError(f"{where} has a damaged header ({one_line(error)}): write the file again") from None
    if kind not in DTYPES:
        raise InputError(f"{where} is {str(kind)[:40]}: save it as one of {', '.join(DTYPES)}")
    dtype: np.dtype[Any] = np.dtype(DTYPES[kind])
    check_array(where, shape, False, dtype)
    array = StoredArray(file, offset + first, dtype, shape, file_stamp(file.fileno()))
    if first < 0 or last - first != array.nbytes or offset + last > array.opened[0]:
        raise InputError(
            f"{where} declares bytes {first} to {last}, which do not fit its shape {shape}: write it again"
        )
    return array
