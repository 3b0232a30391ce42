"""Torch's precision flags and number of threads, for the duration of a block."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch

from marginattack.core.sharing import Restore, exclusive, hold
from marginattack.errors import InputError


@contextmanager
def plain_passes(device: torch.device) -> Iterator[None]:
    """Disable autocast and inference mode and enable gradients, all of which are state of this thread."""
    with ExitStack() as stack:
        for kind in filter(torch.amp.is_autocast_available, {device.type, "cpu"}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


@contextmanager
def restored_threads() -> Iterator[None]:
    """Restore torch's number of threads after the block: later threads inherit it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def full_float32(device: torch.device) -> AbstractContextManager[None]:
    """Disable tf32 on a GPU. By default torch convolves in tf32, and logits change by about 1e-3 with the batch."""
    if device.type != "cuda":
        return nullcontext()
    return hold(lambda: {"tf32": _save()}, partial(_allow_tf32, False))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid tf32 in convolutions and matrix products; restored afterwards.

    Raises:
        InputError: Another thread needs full float32 at this moment: the flag belongs to the process.
    """
    with exclusive("tf32") as alone:
        if allowed and not alone:
            hint = "measure one after the other, or search in float32 or bf16"
            raise InputError(f"search in tf32 while another thread measures: tf32 is a flag of the process; {hint}")
        restore = _save()
        _allow_tf32(allowed)
    try:
        yield
    finally:
        restore()


@contextmanager
def consistent_tf32() -> Iterator[None]:
    """Make the older flag for cuDNN readable for torch.export: it raises if newer flags disable tf32 only in part."""
    cudnn: Any = torch.backends.cudnn
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:
        restore = _save()
        cudnn.allow_tf32 = False
        try:
            yield
        finally:
            cudnn.allow_tf32 = True  # as it must have been
            restore()
    else:
        yield


def _backends() -> tuple[list[Any], str]:
    """The backends that compute in tf32, and the name of their flag."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return [cuda.matmul, cudnn.conv, cudnn.rnn], "fp32_precision"
    return [cuda.matmul, cudnn], "allow_tf32"  # before torch 2.9


def _allow_tf32(allowed: bool) -> None:
    backends, name = _backends()
    for backend in backends:
        setattr(backend, name, cast(Any, allowed) if name == "allow_tf32" else "tf32" if allowed else "ieee")


def _save() -> Restore:
    """Return a function that restores the flags."""
    backends, name = _backends()
    before = [getattr(backend, name) for backend in backends]

    def restore() -> None:
        for backend, old in zip(backends, before, strict=True):
            setattr(backend, name, old)

    return restore
