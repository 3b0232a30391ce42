"""Inputs from arrays, a Dataset, a DataLoader, or any iterable of batches, read in chunks."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from marginattack.core.validation import as_tensor
from marginattack.errors import InputError, name_type, one_line

PAIRS = "give batches of (images, labels)"
ONE_SHAPE = "give inputs of one shape, such as transforms.Resize((h, w)) and CenterCrop give"
STACKED = re.compile(r"stack expects each tensor to be equal size, but got (\[.*?\]) at entry 0 and (\[.*?\])")


class Chunk(NamedTuple):
    """Some of the inputs, with their labels, targets and ids."""

    images: Any
    labels: Any
    targets: Any
    ids: Any


def read_chunks(images: Any, labels: Any, targets: Any, ids: Any, rows: int) -> Iterator[Chunk]:
    """Yield arrays as one chunk; read batches of pairs on demand and join them to chunks of at least ``rows`` rows.

    Raises:
        InputError: Labels are missing or given twice, a batch is not a pair of arrays, or there is none.
    """
    kind = type(images).__name__
    streamed = isinstance(images, Dataset | DataLoader)
    if labels is not None:
        if streamed:
            raise InputError(
                f"labels are given, but {name_type(images)} has its own: leave them out, and name the norm, norm='l2'"
            )
        yield Chunk(images, labels, targets, ids)
        return
    arrays = isinstance(images, Tensor | np.ndarray | str | Mapping) or not isinstance(images, Iterable)
    if arrays and not streamed:
        hint = "give one class per image, or a Dataset, a DataLoader or batches of (images, labels)"
        raise InputError(f"labels are missing for images in {name_type(images)}: {hint}")
    batches = DataLoader(images, batch_size=rows) if isinstance(images, Dataset) else images
    first = 0
    for x, y in _join(_pairs(batches), rows):
        part = slice(first, first + len(x))
        numbers = torch.arange(part.start, part.stop) if ids is None else as_tensor(ids, "ids")[part]
        yield Chunk(x, y, None if targets is None else as_tensor(targets, "targets")[part], numbers)
        first = part.stop
    if not first:
        raise InputError(f"images are an empty {kind}: {PAIRS}")


def count_rows(images: Any, labels: Any) -> int | None:
    """The number of inputs; None if it is unknown before reading."""
    known: Any = images.dataset if isinstance(images, DataLoader) else images
    if labels is None and not isinstance(known, Dataset):
        return None
    try:
        return len(known)
    except TypeError:
        return None


def class_names(images: Any) -> tuple[str, ...] | None:
    """The ``classes`` of a Dataset, such as torchvision's; None if it has none."""
    names = None
    while isinstance(images, Dataset | DataLoader) and names is None:
        names, images = getattr(images, "classes", None), getattr(images, "dataset", None)  # a Subset has a dataset
    return tuple(map(str, names)) if isinstance(names, list | tuple) else None


def _pairs(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each batch as two tensors with as many rows."""
    source, shape = iter(batches), None
    for number in count():
        try:
            batch = next(source)
        except StopIteration:
            return
        except TypeError as error:  # the items of a Dataset are not tensors
            hint = "its items must be (image, label) with an image in a tensor, such as transforms.ToTensor() gives"
            raise InputError(f"the Dataset cannot be read ({one_line(error)}): {hint}") from error
        except RuntimeError as error:
            if not (sizes := STACKED.search(str(error))):
                raise
            raise InputError(
                f"the inputs of batch {number} have shapes {sizes[1]} and {sizes[2]}: {ONE_SHAPE}"
            ) from error
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            seen = name_type(batch)
            if isinstance(batch, list | tuple):
                seen = f"{len(batch)} part{'s' * (len(batch) != 1)}"
            raise InputError(f"batch {number} is {seen}: {PAIRS}")
        try:
            x, y = (torch.as_tensor(part) for part in batch)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"batch {number} holds no arrays of numbers: {PAIRS}") from None
        if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
            raise InputError(f"batch {number} has shapes {tuple(x.shape)} and {tuple(y.shape)}: {PAIRS}")
        if x.shape[1:] != (shape := shape or x.shape[1:]):
            seen = f"shape {tuple(x.shape[1:])}, those before {tuple(shape)}"
            raise InputError(f"the inputs of batch {number} have {seen}: {ONE_SHAPE}")
        yield x, y


def _join(pairs: Iterator[tuple[Tensor, Tensor]], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Small batches joined until there are enough rows."""
    kept: list[tuple[Tensor, Tensor]] = []
    for pair in pairs:
        kept.append(pair)
        if sum(len(y) for _, y in kept) >= rows:
            yield _cat(kept)
            kept = []
    if kept:
        yield _cat(kept)


def _cat(kept: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    if len(kept) == 1:
        return kept[0]
    return torch.cat([x for x, _ in kept]), torch.cat([y for _, y in kept])
