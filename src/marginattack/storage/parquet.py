"""Tensors in Parquet files: one row per sample, images as flat lists, everything else as JSON in the metadata."""

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.storage.files import write_atomically
from marginattack.storage.paths import StoragePath, is_remote

METADATA = "marginattack"  # key of the schema metadata that holds our JSON

# columns of older formats and their present names
RENAMED = {"refuted": "rejected", "late": "distance_at_90pct", "look": "query"}


def make_column(values: Any, dtype: str | None = None) -> Any:
    """A pyarrow array of a column; the rows of a tensor of several dimensions become fixed-size lists."""
    import pyarrow as pa

    if isinstance(values, Tensor) and values.dim() > 1:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.flatten().numpy()), math.prod(values.shape[1:]))
    plain = values.numpy() if isinstance(values, Tensor) else values
    return pa.array(plain, pa.type_for_alias(dtype) if dtype else None)


def read_column(table: Any, name: str, shape: Sequence[int] = ()) -> Tensor:
    """A column of a pyarrow table as a tensor; ``shape`` is that of one row."""
    array = table.column(name).combine_chunks()
    values = (array.flatten() if shape else array).to_numpy(zero_copy_only=False)
    return torch.from_numpy(values.copy()).reshape(len(array), *shape)


def write_table(path: StoragePath, table: Any, metadata: Mapping[str, Any], rows_per_group: int | None = None) -> None:
    """Write a pyarrow table and its metadata atomically."""
    import pyarrow.parquet as pq

    table = table.replace_schema_metadata({METADATA: json.dumps(metadata)})
    with write_atomically(path) as file:
        pq.write_table(table, file, row_group_size=rows_per_group, compression="zstd", compression_level=1)


def open_parquet(path: StoragePath) -> Any:
    """A ``pyarrow.parquet.ParquetFile`` on a local disk or an object store, to be closed by the caller."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if is_remote(path):
        return pq.ParquetFile(path.open("rb"))
    try:
        str(path).encode()
    except UnicodeEncodeError:  # pyarrow takes names in UTF-8 only
        with path.open("rb") as file:
            return pq.ParquetFile(pa.BufferReader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    return pq.ParquetFile(path)


def read_table(path: StoragePath, columns: Sequence[str] | None = None, *, hint: str) -> Any:
    """Some columns of a file, or all, under their present names; ``hint`` says what to do if it is damaged."""
    import pyarrow as pa

    try:
        with open_parquet(path) as file:
            old = {RENAMED[name]: name for name in file.schema_arrow.names if name in RENAMED}
            table = file.read(columns=None if columns is None else [old.get(name, name) for name in columns])
        renamed = table.rename_columns([RENAMED.get(name, name) for name in table.column_names])
        return renamed.replace_schema_metadata(table.schema.metadata)
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is damaged ({one_line(error)}): {hint}") from None


def read_metadata(table: Any) -> dict[str, Any]:
    """What ``write_table`` stored beside the columns; empty where nothing was."""
    return dict(json.loads((table.schema.metadata or {}).get(METADATA.encode(), "{}")))
