"""Torch's precision flags, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """No tf32 on a GPU: by default it convolves in it, and logits of one input differ between batches by some 1e-3."""
    with tf32(False) if device.type == "cuda" else nullcontext():
        yield


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Convolutions and products in tf32, or none of them, for the duration; all as before afterwards."""
    backends = torch.backends
    places: list[Any] = [backends.cuda.matmul, backends.cudnn]
    name, value = "allow_tf32", cast(Any, allowed)  # as it was before torch 2.9
    if hasattr(backends.cudnn, "conv"):
        places = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        name, value = "fp32_precision", "tf32" if allowed else "ieee"
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, value)
        yield
    finally:
        for place, old in zip(places, before, strict=True):
            setattr(place, name, old)
