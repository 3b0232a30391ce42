"""Which formulas run as GPU kernels: those of ℓ2 and ℓ∞, on a GPU where Triton works. Importing this registers them."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from marginattack.core import fusion
from marginattack.core.norms import L2, LINF


def provide(name: str, x: Tensor, norm: Any) -> fusion.Kernel | None:
    """The kernel of that name for these points and this norm, or None."""
    if not available(x) or (kernels := load(x.device)) is None:
        return None
    if norm is None:
        return getattr(kernels, name, None)
    return getattr(kernels.Kernels(norm == LINF), name, None) if norm in (L2, LINF) else None


def available(x: Tensor) -> bool:
    """Whether these points lie where kernels can run."""
    return x.is_cuda


_loading: "dict[torch.device, Future[Any]]" = {}
_lock = Lock()


def start_loading(device: torch.device, columns: int, classes: int) -> "Future[Any]":
    """Begin to load the kernels of a GPU in a thread: most of it is reading and hashing files.

    They are compiled for inputs with this many coordinates and logits of this many classes, if not for others before.
    """
    if device.index is None:
        device = torch.device(device.type, torch.cuda.current_device())
    with _lock:
        if device not in _loading:
            pool = ThreadPoolExecutor(1, thread_name_prefix="kernels")
            _loading[device] = pool.submit(_load, device, columns, classes)
            pool.shutdown(wait=False)
        return _loading[device]


def load(device: torch.device) -> Any:
    """The module of kernels; None where Triton is missing or cannot compile them for this GPU."""
    return start_loading(device, columns=2, classes=2).result()


def _load(device: torch.device, columns: int, classes: int) -> Any:
    try:
        from marginattack.execution import kernels

        with torch.cuda.device(device):  # the current device belongs to a thread, and a new thread starts with cuda:0
            kernels.run_all(columns, classes)
    except Exception:
        return None
    return kernels


fusion.register(provide)
