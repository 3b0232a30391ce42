"""Torch's precision flags, for the duration of a block."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """No tf32 on a GPU. By default torch convolves in tf32, where logits change by some 1e-3 with the batch."""
    with tf32(False) if device.type == "cuda" else nullcontext():
        yield


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid tf32 in convolutions and matrix products; restored afterwards."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    backends: list[Any] = [cuda.matmul, cudnn]
    name, value = "allow_tf32", cast(Any, allowed)  # before torch 2.9
    if hasattr(cudnn, "conv"):
        backends = [cuda.matmul, cudnn.conv, cudnn.rnn]
        name, value = "fp32_precision", "tf32" if allowed else "ieee"
    before = [getattr(backend, name) for backend in backends]
    try:
        for backend in backends:
            setattr(backend, name, value)
        yield
    finally:
        for backend, old in zip(backends, before, strict=True):
            setattr(backend, name, old)
