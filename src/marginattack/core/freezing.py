"""A model in eval mode, frozen, for the duration of a block; everything is restored afterwards."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from marginattack.core.flags import full_float32, plain_passes
from marginattack.core.sharing import Restore, hold
from marginattack.errors import InputError, one_line


@contextmanager
def frozen_eval(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, frozen parameters, gradients enabled, full float32 and no autocast inside the block.

    Afterwards modes, flags and buffers are restored, also after an exception. Threads may freeze the same model, or
    models that share modules: shared modules are restored when the last thread is done.

    Raises:
        InputError: The model ignores ``eval()`` or raises in it, or has parameters without values or of inference mode.
    """
    _check(model)
    with hold(partial(_save, model), partial(_freeze, model)), plain_passes(device), full_float32(device):
        yield


def _check(model: nn.Module) -> None:
    """Raise InputError for a model that cannot be frozen and restored."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(f"{name} of the model has no values yet: call the model once on an input")
        if tensor.is_inference():
            raise InputError(f"{name} of the model was made in inference mode: build the model outside of it")


def _freeze(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError as error:
        hint = "measure the module it was exported from, or open the .pt2 file"
        raise InputError(f"model refuses eval() ({one_line(error)}): {hint}") from None
    if model.training:
        hint = "make its train() and eval() take effect, since margins need the inference behaviour"
        raise InputError(f"model stays in train mode after eval(): {hint}")
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _save(model: nn.Module) -> dict[Hashable, Restore]:
    """Functions that restore the modes, flags and buffers of a model, each under its own key.

    They hold references to the modules and tensors, so that no id is reused.
    """
    saved: dict[Hashable, Restore] = {}
    for module in model.modules():
        saved[id(module)] = partial(setattr, module, "training", module.training)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                saved[id(module), name] = partial(_restore_buffer, module, name, buffer, buffer.clone())
    for parameter in model.parameters():
        saved[id(parameter)] = partial(parameter.requires_grad_, parameter.requires_grad)
    return saved


@torch.no_grad()
def _restore_buffer(module: nn.Module, name: str, buffer: Tensor, value: Tensor) -> None:
    module._buffers[name] = buffer.copy_(value)
