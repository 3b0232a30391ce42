"""Models in the wrappers of other libraries, as modules."""

import inspect
import sys
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from marginattack.core.classifier import Bounds
from marginattack.errors import InputError


@runtime_checkable
class ModelWithBounds(Protocol):
    """A Foolbox model: callable, with bounds."""

    @property
    def bounds(self) -> Any: ...

    def __call__(self, inputs: Any) -> Any: ...


class Wrapped(nn.Module):
    """Another library's wrapper around a network, as a module: forward calls the wrapper with its preprocessing."""

    def __init__(self, wrapper: Any, network: nn.Module) -> None:
        super().__init__()
        self.network = network  # registered, so that its mode and device are those of this module
        self.wrapper = wrapper

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.wrapper(images)
        return logits


def unwrap(model: Any, bounds: Bounds | None) -> tuple[Any, Bounds | None]:
    """Convert a Foolbox model to a module and its bounds; return anything else unchanged.

    Raises:
        InputError: The Foolbox model is of another framework, or bounds are given in addition to its own.
    """
    foolbox = sys.modules.get("foolbox")
    if foolbox is None or not isinstance(model, foolbox.models.base.Model):
        return model, bounds
    if bounds is not None:
        raise InputError("bounds are given twice: a Foolbox model has its own, so leave them out")
    inner = model
    while isinstance(inner, foolbox.models.base.Model):
        inner = inner._model
    network = inspect.getclosurevars(inner).nonlocals.get("model") if inspect.isfunction(inner) else None
    if not isinstance(network, nn.Module):
        raise InputError(f"{type(model).__name__} wraps no torch.nn.Module: give a foolbox.PyTorchModel")
    return Wrapped(model, network), (float(model.bounds.lower), float(model.bounds.upper))
