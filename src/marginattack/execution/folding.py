"""Fold batch normalisations into the convolutions before them, on a copy: the same function, less to compute."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized

CLOSE = 1e-4  # the largest difference of a folded copy's logits, as a share of the largest logit

KINDS = (nn.Conv2d, nn.BatchNorm2d)  # a subclass that computes something else changes the logits, which is checked

Pair = tuple[str, str]  # names of a convolution and of the normalisation that is the only reader of its output


@torch.no_grad()
def fold(model: nn.Module, images: Tensor) -> nn.Module | None:
    """A copy of a model in eval mode with its normalisations folded as far as possible; None if none can be."""
    if not all(any(isinstance(module, kind) for module in model.modules()) for kind in KINDS):
        return None
    try:
        copy = deepcopy(model)  # observed too, since another thread may be running the model itself
        pairs = _find_pairs(copy, images.clone())
        if not pairs:
            return None
        for conv, norm in pairs:
            parts: Any = copy.get_submodule(conv), copy.get_submodule(norm)
            fused: nn.Module = fuse_conv_bn_eval(*parts)
            copy.set_submodule(conv, fused.requires_grad_(False))
            copy.set_submodule(norm, nn.Identity())
        expected, found = model(images.clone()), copy(images.clone())
    except Exception:  # a model that cannot be copied or changed may raise anything
        return None
    return copy if float((expected - found).abs().max()) <= CLOSE * float(expected.abs().max()) else None


def _find_pairs(model: nn.Module, images: Tensor) -> list[Pair]:
    """Convolutions whose output a normalisation reads unchanged, each called once; observed in one forward."""
    made: dict[int, tuple[str, int]] = {}  # by tensor id: the module that made it, and the tensor's version then
    alive: list[Tensor] = []  # so that no id is used twice
    pairs: list[Pair] = []
    calls: dict[str, int] = {}

    def observe(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls[name] = calls.get(name, 0) + 1
            alive.append(output)
            if isinstance(module, nn.Conv2d):
                made[id(output)] = name, output._version
            elif inputs and id(inputs[0]) in made and module.running_mean is not None:
                maker, version = made[id(inputs[0])]
                if version == inputs[0]._version:
                    pairs.append((maker, name))

        return hook

    hooks = [
        module.register_forward_hook(observe(name))
        for name, module in model.named_modules()
        if isinstance(module, KINDS) and not (module.training or is_parametrized(module))
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1]
