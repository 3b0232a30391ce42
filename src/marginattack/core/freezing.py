"""A model in eval mode, frozen, for the duration of a block; everything is restored afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from marginattack.core.flags import full_float32
from marginattack.errors import InputError


@contextmanager
def frozen_eval(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, frozen parameters, gradients enabled and full float32 inside the block.

    Afterwards modes, flags and buffers are as before, also when something was raised.

    Raises:
        InputError: The model ignores ``eval()``.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    buffers = [
        (owner, name, buffer, buffer.clone())
        for owner in model.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        model.eval()
        if model.training:
            hint = "make its train() and eval() take effect, since margins need the inference behaviour"
            raise InputError(f"model stays in train mode after eval(): {hint}")
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        with torch.inference_mode(False), torch.enable_grad(), full_float32(device):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                owner._buffers[name] = buffer.copy_(value)
