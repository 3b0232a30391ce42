"""Which formulas run as GPU kernels: those of ℓ2 and ℓ∞, on a GPU where Triton works. Importing this registers them."""

from functools import cache
from typing import Any

from torch import Tensor

from marginattack.core import fusion
from marginattack.core.norms import L2, LINF


def provide(name: str, x: Tensor, norm: Any) -> fusion.Kernel | None:
    """The kernel of that name for these points and this norm, or None."""
    if not available(x) or (kernels := load()) is None:
        return None
    if norm is None:
        return getattr(kernels, name, None)
    return getattr(kernels.Kernels(norm == LINF), name, None) if norm in (L2, LINF) else None


def available(x: Tensor) -> bool:
    """Whether these points lie where kernels can run."""
    return x.is_cuda


@cache
def load() -> Any:
    """The module of kernels; None where Triton is missing or cannot compile them."""
    try:
        from marginattack.execution import kernels

        kernels.run_all()
    except Exception:
        return None
    return kernels


fusion.register(provide)
