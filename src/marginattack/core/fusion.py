"""Formulas that may run as one GPU kernel. The formula is the specification; ``execution`` registers the kernels."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from torch import Tensor

from marginattack.core.box import Box

Kernel: TypeAlias = Callable[..., Any]
Provider: TypeAlias = Callable[[str, Tensor, Any], Kernel | None]  # (name, points, norm) ↦ its kernel, if there is one

_providers: list[Provider] = []


def register(provider: Provider) -> None:
    """Add a function that provides kernels."""
    _providers.append(provider)


def kernel(name: str, x: Tensor, norm: Any = None) -> Kernel | None:
    """The kernel of that name for these points, or None."""
    return next((found for provider in _providers if (found := provider(name, x, norm)) is not None), None)


def fusible(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a formula of (norm, x, …): its kernel runs instead if there is one for these points and this norm.

    Kernels need bounds that all points share.
    """

    @wraps(formula)
    def run(norm: Any, x: Tensor, *arguments: Any, **options: Any) -> Any:
        shared = all(argument.shared for argument in arguments if isinstance(argument, Box))
        fused = kernel(formula.__name__, x, norm) if shared else None
        return formula(norm, x, *arguments, **options) if fused is None else fused(x, *arguments, **options)

    return run
