"""Tensors in Parquet files: one row per sample, images as flat lists, everything else as JSON in the metadata.

The metadata hold a digest of each row group and a digest of the metadata, which identifies the whole file. Readers of
some row groups check only those.
"""

import hashlib
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.storage.files import write_atomically
from marginattack.storage.paths import StoragePath, is_remote

METADATA = "marginattack"  # key of the schema metadata that holds our JSON
ROWS_PER_GROUP = 2**20

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


def write_table(path: StoragePath, table: Any, about: Mapping[str, Any], rows_per_group: int = ROWS_PER_GROUP) -> str:
    """Write a pyarrow table and its metadata atomically; returns the digest of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups = [_digest_rows(table.slice(first, rows_per_group)) for first in range(0, len(table), rows_per_group)]
    content = {**about, "groups": groups}
    digest = digest_json(content)
    text = json.dumps({**content, "digest": digest})
    # Statistics of image floats are useless, and dictionaries help only if the floats stem from 8 bits.
    plain = [field.name for field in table.schema if not pa.types.is_fixed_size_list(field.type)]
    dictionary = [*plain, *(["original.list.element"] if "original" in table.column_names else [])]
    with write_atomically(path) as file:
        pq.write_table(
            table.replace_schema_metadata({METADATA: text}), file, row_group_size=rows_per_group, compression="zstd",
            compression_level=1, use_dictionary=dictionary, write_statistics=plain,
        )  # fmt: skip
    return digest


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


def read_table(path: StoragePath, *, hint: str, positions: Sequence[int] | None = None) -> Any:
    """Read a file, or the rows at some positions, and check the digests; ``hint`` says what to do if they differ.

    Columns of older formats get their present names. Files of older formats have no digests.
    """
    import pyarrow as pa

    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            sizes = np.array([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)], dtype=np.int64)
            wanted, rows = _locate(sizes, positions)
            digests = _read_digests(read_metadata(schema), int(np.count_nonzero(sizes)))
            tables = [_read_group(file, int(i), digests[i]) for i in wanted if sizes[i]]
        table = pa.concat_tables(tables) if tables else schema.empty_table()
        if rows is not None:
            table = table.take(rows)
        renamed = table.rename_columns([RENAMED.get(name, name) for name in table.column_names])
        return renamed.replace_schema_metadata(schema.metadata)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        raise InputError(f"{path} is damaged ({one_line(error)}): {hint}") from None


def read_metadata(table: Any) -> dict[str, Any]:
    """The metadata that ``write_table`` stored with a table or schema; empty if there are none."""
    schema = getattr(table, "schema", table)
    try:
        about = json.loads((schema.metadata or {}).get(METADATA.encode(), "{}"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its metadata are not JSON: {one_line(error)}") from None
    if not isinstance(about, dict):
        raise ValueError("its metadata are not a JSON object")
    return about


def digest_bytes(content: bytes) -> str:
    """The first 128 bits of SHA-256, which current processors compute fastest."""
    return hashlib.sha256(content).hexdigest()[:32]


def digest_json(tree: Any) -> str:
    """A digest of nested values that JSON can store."""
    return digest_bytes(json.dumps(tree, sort_keys=True).encode())


def _locate(sizes: np.ndarray, positions: Sequence[int] | None) -> tuple[Any, np.ndarray | None]:
    """The row groups that hold some rows, and where these rows are when the groups are joined."""
    if positions is None:
        return range(len(sizes)), None
    starts, rows = np.cumsum(sizes) - sizes, np.asarray(positions, dtype=np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < sizes.sum():
        raise ValueError(f"it has {sizes.sum()} rows, row {rows.max()} is missing")
    groups, index = np.unique(np.searchsorted(starts, rows, side="right") - 1, return_inverse=True)
    joined = np.cumsum(sizes[groups]) - sizes[groups]
    return groups, rows - starts[groups][index] + joined[index]


def _read_digests(about: dict[str, Any], groups: int) -> list[str | None]:
    """The digests of the row groups, after a check of the metadata; None for each in older formats."""
    if "digest" not in about:
        return [None] * groups
    content = {name: value for name, value in about.items() if name != "digest"}
    digests: list[str | None] = content["groups"]
    if digest_json(content) != about["digest"] or len(digests) != groups:
        raise ValueError("its metadata or rows do not match their digest")
    return digests


def _read_group(file: Any, number: int, digest: str | None) -> Any:
    table = file.read_row_group(number)
    if digest is not None and digest != _digest_rows(table):
        raise ValueError("its rows do not match their digest")
    return table


def _digest_rows(table: Any) -> str:
    """A digest of the names, types and values of all columns."""
    import pyarrow as pa

    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.combine_chunks()
        flat = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
        if array.null_count or flat.null_count:
            raise ValueError(f"column {name} has empty cells")
        digest.update(f"{name} {flat.type} {len(flat)} in {len(array)}\n".encode())
        if pa.types.is_string(flat.type):
            digest.update(json.dumps(flat.to_pylist()).encode())
        else:
            digest.update(np.ascontiguousarray(flat.to_numpy(zero_copy_only=False)).view(np.uint8).data)
    return digest.hexdigest()[:32]
