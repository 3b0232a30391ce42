"""Values per feature, in the syntax of ``--bounds``, ``--scale`` and ``--fixed``."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.common import sha256, suggest
from marginattack.sources.data_base import Data
from marginattack.sources.data_npz import read_array

BOUNDS = "give LO,HI (also -inf and inf), COLUMN=LO:HI,… or FILE.npz:KEY, an array of shape (2, …)"
SCALE = "give a positive number, one per feature, COLUMN=NUMBER,… or FILE.npz:KEY"
FIXED = "name columns, give the numbers of features from 0, or FILE.npz:KEY, a mask"
MAX_SHOWN = 16  # numbers stored in the manifest; for more, their digest


def read_bounds(text: str, data: Data, max_gib: float | None = None) -> tuple[Any, Any]:
    """Read lower and upper bounds: two numbers or two arrays. Columns that are not named are unbounded."""
    if ".npz:" in text:
        values = _read_file("--bounds", text, max_gib)
        if values.shape[0] != 2:
            raise InputError(f"--bounds {text} has shape {values.shape}, not (2, …): save np.stack([lo, hi])")
        return _check_order(text, values[0], values[1])
    if "=" in text:
        lo, hi = (np.full(len(data.features or ()), sign * np.inf) for sign in (-1, 1))
        for column, value in _read_columns("--bounds", text, data, _parse_range):
            lo[column], hi[column] = value
        return _check_order(text, lo, hi)
    values = _read_numbers("--bounds", text, BOUNDS)
    if len(values) != 2:
        raise InputError(f"--bounds {text} has {len(values)} number{'s' * (len(values) != 1)}: {BOUNDS}")
    return _check_order(text, float(values[0]), float(values[1]))


def read_scale(text: str, data: Data, max_gib: float | None = None) -> Any:
    """Read the unit of each feature. Columns that are not named have unit 1."""
    if ".npz:" in text:
        return _read_file("--scale", text, max_gib)
    if "=" in text:
        scale = np.ones(len(data.features or ()))
        for column, value in _read_columns("--scale", text, data, float):
            scale[column] = value
        return scale
    values = _read_numbers("--scale", text, SCALE)
    if len(values) > 1 and data.shape != (len(values),):
        shape = "×".join(map(str, data.shape))
        raise InputError(f"--scale {text} has {len(values)} numbers for inputs of {shape}: {SCALE}")
    return values if len(values) > 1 else float(values[0])


def read_fixed(text: str, data: Data, max_gib: float | None = None) -> NDArray[np.bool_]:
    """Read which features must not change: columns by name, features by number, or a mask."""
    if ".npz:" in text:
        mask = _read_file("--fixed", text, max_gib)
        if not np.isin(mask, (0, 1)).all():
            raise InputError(f"--fixed {text} holds other numbers than 0 and 1: save a mask, True for fixed features")
        return mask.astype(bool)
    fixed = np.zeros(data.shape, dtype=bool)
    if data.features is None and fixed.ndim > 1:
        raise InputError(f"--fixed {text}: inputs have {fixed.ndim} axes: give FILE.npz:KEY, a mask of their shape")
    for name in map(str.strip, text.split(",")):
        if data.features is not None and name in data.features:
            fixed[data.features.index(name)] = True
        elif name.isdecimal() and int(name) < len(fixed):
            fixed[int(name)] = True
        else:
            known = suggest(name, data.features) if data.features else f"features are 0 to {len(fixed) - 1}"
            raise InputError(f"--fixed {name[:40]!r} is not a feature; {known}: {FIXED}")
    return fixed


def check_inside(data: Data, rows: Tensor, inputs: Tensor, space: Mapping[str, Any]) -> None:
    """Raise InputError for inputs, with numbers ``rows``, outside the bounds. Fixed features may have any value."""
    lo, hi = (torch.as_tensor(bound).to(inputs) for bound in space["bounds"])
    try:
        outside = (inputs < lo) | (inputs > hi)
        outside &= ~torch.as_tensor(space.get("fixed", False))
    except RuntimeError:
        shape = tuple(lo.shape)
        raise InputError(f"--bounds of shape {shape} do not fit inputs of shape {data.shape}: {BOUNDS}") from None
    if bool(outside.any()):
        row, *place = outside.nonzero()[0].tolist()
        where = f"column {data.features[place[0]]!r}" if data.features else f"x[{', '.join(map(str, place))}]"
        value, low, high = (float(each.expand_as(inputs)[row, *place]) for each in (inputs, lo, hi))
        problem = f"{where} is {value:g} in row {int(rows[row])}, outside the bounds {low:g} to {high:g}"
        raise InputError(f"{data.name}: {problem}: widen --bounds, or leave out the row")


def describe(values: Any) -> Any:
    """Describe values per feature for the manifest: as text, or by a digest if there are many."""
    array = np.asarray(values, dtype=np.float64)
    if array.size <= MAX_SHOWN:
        return [str(number) for number in array.flatten().tolist()]
    return sha256(array.shape, chunks=[np.ascontiguousarray(array).tobytes()])


def _check_order(text: str, lo: Any, hi: Any) -> tuple[Any, Any]:
    """Return the bounds; InputError if a lower one is above its upper one."""
    low, high = np.ravel(lo), np.ravel(hi)
    if (wrong := low > high).any():
        first = f"{low[wrong][0]:g} is above the upper bound {high[wrong][0]:g}"
        raise InputError(f"--bounds {text}: the lower bound {first}: give the lower one first")
    return lo, hi


def _read_file(option: str, text: str, max_gib: float | None) -> NDArray[Any]:
    path, _, key = text.rpartition(":")
    values = read_array(f"{option} {text}", path, key, max_gib)
    if values.dtype.kind not in "fiub":
        raise InputError(f"{option} {text} is {values.dtype}: save numbers")
    return values


def _read_numbers(option: str, text: str, hint: str) -> NDArray[np.float64]:
    try:
        return np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise InputError(f"{option} {text!r} is not a list of numbers: {hint}") from None


def _read_columns(option: str, text: str, data: Data, parse: Callable[[str], Any]) -> list[tuple[int, Any]]:
    """Read ``COLUMN=VALUE,…`` as pairs of a column's number and its value."""
    hint = SCALE if option == "--scale" else BOUNDS
    if data.features is None:
        raise InputError(f"{option} {text}: only the columns of tables (CSV, Parquet) have names: {hint}")
    pairs = []
    for part in text.split(","):
        name, _, value = part.rpartition("=")
        if name.strip() not in data.features:
            known = suggest(name.strip(), data.features)
            raise InputError(f"{option} {part!r} names no column of {data.name}; {known}: {hint}")
        try:
            pairs.append((data.features.index(name.strip()), parse(value)))
        except ValueError:
            raise InputError(f"{option} {part!r} is not a number or range: {hint}") from None
    return pairs


def _parse_range(text: str) -> tuple[float, float]:
    lo, hi = map(float, text.split(":"))
    return lo, hi
