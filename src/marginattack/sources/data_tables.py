"""Tables in CSV and Parquet files: numeric columns are features, one column is the label.

A table is copied, a few rows at a time, to an unnamed temporary file, from which rows are read like those of an array.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from marginattack.errors import InputError
from marginattack.sources.common import check_size, explain_errors, suggest
from marginattack.sources.data_arrays import (
    LARGER_DISK,
    MAX_GROWTH,
    UNPACKED_BYTES,
    ArrayData,
    StoredArray,
    find_file,
    temporary_file,
)
from marginattack.sources.data_base import Data, Options, check_labels, file_stamp, relative_names
from marginattack.storage.parquet import open_parquet

LABEL, NAMES = "label", ("name", "file")  # default columns
TABLE_BYTES = 4 * 2**30  # of a file; --max-gib raises it
BLOCK = 2**24  # bytes of a CSV that are parsed at a time, and the most that a line may have
ROWS = 2**14  # of a Parquet file that are read at a time
FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class _Columns:
    """Which columns are features, which is the label, and which names the rows, if any."""

    features: list[str]
    label: str
    name: str | None

    @property
    def used(self) -> list[str]:
        """All columns that are read."""
        return [*self.features, self.label, *([] if self.name is None else [self.name])]


def open_csv(source: str, options: Options) -> Data:
    """Open a CSV file whose first line names the columns."""
    import pyarrow as pa
    from pyarrow import csv

    path = find_file(source, source)
    check_size(source, path.stat().st_size, TABLE_BYTES, options.max_gib)
    blocks = csv.ReadOptions(use_threads=False, block_size=BLOCK)
    hint = "write a line of column names, then one line per input"
    with explain_errors(f"{source}: not a CSV table", hint):
        with csv.open_csv(path, blocks) as reader:
            names = reader.schema.names
        columns = _choose(source, names, options)
        types = {name: pa.float64() for name in columns.features} | {columns.label: pa.string()}
        types |= {} if columns.name is None else {columns.name: pa.string()}

    def batches() -> Iterator[Any]:
        convert = csv.ConvertOptions(column_types=types, include_columns=columns.used, strings_can_be_null=False)
        with csv.open_csv(path, blocks, convert_options=convert) as reader:
            yield from reader

    most = 2 * path.stat().st_size  # a number takes two characters or more, and four bytes when it is stored
    return _copy(source, path, columns, batches, most, options)


def open_parquet_table(source: str, options: Options) -> Data:
    """Open a Parquet file whose features are columns of numbers."""
    path = find_file(source, source)
    check_size(source, path.stat().st_size, TABLE_BYTES, options.max_gib)
    with explain_errors(f"{source}: not a Parquet table"), open_parquet(path) as file:
        columns = _choose(source, file.schema_arrow.names, options)
        groups = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
        size = max(sum(groups), file.metadata.num_rows * (len(columns.features) * FLOAT.itemsize + 8))
        if size > MAX_GROWTH * path.stat().st_size:
            what = f"{source}, which grows more than {MAX_GROWTH}-fold,"
            check_size(what, size, UNPACKED_BYTES, options.max_gib)

    def batches() -> Iterator[Any]:
        with open_parquet(path) as file:
            yield from file.iter_batches(batch_size=ROWS, columns=columns.used, use_threads=False)

    return _copy(source, path, columns, batches, size, options)


def _choose(source: str, names: Sequence[str], options: Options) -> _Columns:
    """Choose the columns: those that the options name, by default all but the label and the names of the rows."""
    repeated = [name for name in names if list(names).count(name) > 1] if len(set(names)) < len(names) else []
    if repeated:
        raise InputError(f"{source}: {repeated.count(repeated[0])} columns are named {repeated[0]!r}: rename them")
    label = options.labels or LABEL
    stated = [name.strip() for name in options.features.split(",")] if options.features else None
    for option, name in (("--labels", label), *(("--features", name) for name in stated or ())):
        if name not in names:
            hint = f"choose with {option}; {suggest(name, list(names))}"
            raise InputError(f"{source}: no column {name[:40]!r}: {hint}")
    if stated is not None and (label in stated or len(set(stated)) < len(stated)):
        raise InputError(f"{source}: --features {options.features} names the label or a column twice: name each once")
    taken = (label, *(stated or ()))
    rows = next((each for each in NAMES if each in names and each not in taken), None)
    features = stated or [each for each in names if each not in (label, rows)]
    if not features:
        raise InputError(f"{source}: no column besides {label!r}: add columns of features")
    return _Columns(features, label, rows)


def _copy(
    source: str, path: Path, columns: _Columns, batches: Callable[[], Iterator[Any]], size: int, options: Options
) -> ArrayData:
    """Copy the features to a temporary file, and keep labels and names."""
    opened, kept, n = file_stamp(path), dict[str, list[Any]](label=[], name=[]), 0
    with ExitStack() as stack:
        target = stack.enter_context(temporary_file(source, "the table", size))
        with explain_errors(f"{source}: cannot be read", "choose columns of numbers with --features A,B,C"):
            for batch in batches():
                _write(source, batch, columns, n, target)
                n += len(batch)
                kept["label"].append(batch.column(columns.label))
                if columns.name is not None:
                    kept["name"] += map(str, batch.column(columns.name).to_pylist())
        if n == 0:
            raise InputError(f"{source}: no rows: give at least one")
        target.flush()
        x = StoredArray(target, 0, FLOAT, (n, len(columns.features)), file_stamp(target.fileno()))
        labels, classes = _read_labels(f"{source}: column {columns.label!r}", kept["label"])
        names = None if columns.name is None else relative_names(kept["name"])
        data = ArrayData(
            source, x, labels, "as-is", opened, raw=options.raw, classes=classes, names=names, features=columns.features
        ).survey()
        stack.pop_all()  # the data closes it
    return data


def _write(source: str, batch: Any, columns: _Columns, first: int, target: IO[bytes]) -> None:
    """Write the features of some rows as floats."""
    rows = np.empty((len(batch), len(columns.features)), FLOAT)
    for number, name in enumerate(columns.features):
        column = batch.column(name)
        if column.null_count:
            row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{source}: column {name!r} is empty in row {row}: fill it in, or leave out the row")
        kind = str(column.type)
        if not kind.startswith(("int", "uint", "float", "double", "halffloat", "bool", "decimal")):
            hint = "encode it as numbers, or choose other columns with --features A,B,C"
            hint = f"for images pass --data hf:{source}" if kind.startswith("struct") else hint
            raise InputError(f"{source}: column {name!r} holds {kind}: {hint}")
        rows[:, number] = column.to_numpy(zero_copy_only=False)
    try:
        target.write(rows.tobytes())
    except OSError as error:
        raise InputError(f"{source}: cannot be copied ({error.strerror}): {LARGER_DISK}") from error


def _read_labels(where: str, parts: list[Any]) -> tuple[Any, list[str] | None]:
    """Return class indices; for class names, their index in alphabetical order, and the names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pa.chunked_array(parts)
    if pa.types.is_dictionary(column.type) or pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    if column.null_count:
        raise InputError(f"{where} has {column.null_count} empty cells: label every row")
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return check_labels(column.to_numpy(), where), None
    for kind in (pa.int64(), pa.float64()):
        try:
            return check_labels(column.cast(kind).to_numpy(), where), None
        except pa.ArrowInvalid:
            continue
    classes = sorted(column.unique().to_pylist())
    return check_labels(pc.index_in(column, pa.array(classes, column.type)).to_numpy(), where), classes
