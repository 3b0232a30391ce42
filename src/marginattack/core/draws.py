"""Random draws that belong to the sample: a hash of seed, sample, draw and coordinate, whatever the batch or device."""

import torch
from torch import Tensor

from marginattack.core.types import Points
from marginattack.execution.graphs import onto


def uniform(ids: Tensor, d: int, *, seed: int, draw: Tensor, like: Tensor) -> Points:
    """Numbers in [0, 1), one row a sample id: the same for the same (seed, id, draw), in any company."""
    key = onto(_mixed(_mixed(ids + _mixed(torch.tensor(seed))) + draw), like)
    bits = _mixed(key[:, None] + torch.arange(d, device=like.device))
    return ((bits >> 40) & 0xFFFFFF).to(like.dtype) / 2**24


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's step and finaliser (Steele et al. 2014) in wrapping 64-bit integers."""
    x = x + -0x61C8864680B583EB
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's own carries the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
