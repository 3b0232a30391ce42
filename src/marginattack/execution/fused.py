"""Which formulas run as GPU kernels: those of ℓ2 and ℓ∞, on a GPU where Triton works. Importing this registers them."""

from concurrent.futures import Future, ThreadPoolExecutor
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


_loading: "list[Future[Any]]" = []


def start_loading(columns: int, device: torch.device) -> None:
    """Begin to load the kernels in a thread, for rows of this length: most of it is reading and hashing files."""
    if not _loading:
        pool = ThreadPoolExecutor(1, thread_name_prefix="kernels")
        _loading.append(pool.submit(_load, columns, device))
        pool.shutdown(wait=False)


def load(device: torch.device) -> Any:
    """The module of kernels; None where Triton is missing or cannot compile them for this GPU."""
    start_loading(2, device)
    return _loading[0].result()


def _load(columns: int, device: torch.device) -> Any:
    try:
        from marginattack.execution import kernels

        with torch.cuda.device(device):  # a new thread begins at the first one
            kernels.run_all(columns)
    except Exception:
        return None
    return kernels


fusion.register(provide)
