"""Rows of tensors: copied to a device, padded, scattered, counted."""

import torch
from torch import Tensor


def to_device_of(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy on the device of ``like``; on a GPU the host does not wait for it."""
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor.to(like.device)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """A copy padded to this many rows with the first one."""
    padded = tensor[:1].expand(rows, *tensor.shape[1:]).clone()
    padded[: len(tensor)] = tensor
    return padded


def scatter_rows(values: Tensor, rows: slice | Tensor, n: int) -> Tensor:
    """Scatter values of some rows into a tensor of n rows, zero elsewhere; a slice means all rows."""
    if isinstance(rows, slice):
        return values
    return values.new_zeros(n, *values.shape[1:]).index_copy(0, rows, values)


def occurrence(rows: Tensor) -> Tensor:
    """For each entry, how many equal entries precede it."""
    order = rows.argsort(stable=True)
    ordered = rows[order]
    return torch.empty_like(rows).index_copy(0, order, torch.arange(len(rows)) - torch.searchsorted(ordered, ordered))
