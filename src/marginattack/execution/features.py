"""Hidden layers of a model: their outputs during a pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import Tensor, nn


def hidden_layers(model: nn.Module) -> list[nn.Module]:
    """The modules with parameters of their own and no parts, but the last one, which makes the logits."""
    if isinstance(model, torch.jit.ScriptModule):
        return []
    return [m for m in model.modules() if not list(m.children()) and list(m.parameters(recurse=False))][:-1]


@contextmanager
def record_output(model: nn.Module, layer: int) -> Iterator[list[Tensor]]:
    """The outputs of a hidden layer, counted from the last one and around, in the passes of this thread."""
    outputs: list[Tensor] = []
    thread = get_ident()

    def keep(module: nn.Module, arguments: object, output: object) -> None:
        if get_ident() == thread and isinstance(output, Tensor) and output.requires_grad:
            outputs.append(output.clone())  # the next layer may change it in place

    layers = hidden_layers(model)
    if not layers:
        yield outputs
        return
    handle = layers[-1 - layer % len(layers)].register_forward_hook(keep)
    try:
        yield outputs
    finally:
        handle.remove()
