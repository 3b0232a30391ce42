"""A model in eval mode, frozen, for the duration of a block; everything is restored afterwards."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from marginattack.core.flags import full_float32, plain_passes
from marginattack.core.sharing import Restore, hold
from marginattack.errors import InputError


@contextmanager
def frozen_eval(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, frozen parameters, gradients enabled, full float32 and no autocast inside the block.

    Afterwards modes, flags and buffers are as before, also when something was raised. Threads may freeze the same
    model, or models that share modules: what they share is restored when the last of them is done.

    Raises:
        InputError: The model ignores ``eval()``.
    """
    with hold(partial(_save, model), partial(_freeze, model)), plain_passes(device), full_float32(device):
        yield


def _freeze(model: nn.Module) -> None:
    model.eval()
    if model.training:
        hint = "make its train() and eval() take effect, since margins need the inference behaviour"
        raise InputError(f"model stays in train mode after eval(): {hint}")
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _save(model: nn.Module) -> dict[Hashable, Restore]:
    """What restores the modes, flags and buffers of a model, each under its own key.

    The functions hold the modules and tensors, so that no id is used twice.
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
