"""Faster copies of a frozen model: batch normalisations folded, 16 bits."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.classifier import Classifier
from marginattack.execution.folding import fold

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
GRADIENT_SCALE = 256.0  # in 16 bits: gradients of pixels would underflow in fp16


class Copies:
    """The model of a classifier in eval mode and its copies, each made when it is first needed."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self._folded: nn.Module | None = None
        self._half: dict[torch.dtype, nn.Module] = {}

    def fold(self, images: Tensor) -> None:
        """Fold batch normalisations into convolutions, as far as these images show that nothing changes."""
        if self._folded is None:
            self._folded = fold(self.classifier.model, self.classifier.cast(images)) or self.classifier.model

    @property
    def fast(self) -> nn.Module:
        """The model that attacks query: folded where that was possible."""
        return self._folded or self.classifier.model

    def in_precision(self, precision: str, images: Tensor) -> nn.Module:
        """The copy for this precision; images like those that it will get show where its first and last layer are."""
        if (dtype := DTYPES.get(precision)) is None:
            return self.fast
        if dtype not in self._half:
            self._half[dtype] = to_half(self.fast, images[:1].detach(), dtype)
        return self._half[dtype]


@torch.no_grad()
def to_half(model: nn.Module, images: Tensor, dtype: torch.dtype) -> nn.Module:
    """A copy in 16 bits, channels last; the last layer, and what comes before the first one, computes as in the model.

    In bf16 the first layer does so too: it would round an input in [0, 1] to 8 bits, and the last one logits near 10 to
    multiples of 1/16, which is more than all layers in between cost.
    """
    copy = deepcopy(model)
    called = _called(copy, images.clone())
    layers = [module for module in called if list(module.parameters(recurse=False))]
    before = called.index(layers[0]) + (dtype == torch.bfloat16) if layers else 0
    exact = [*called[:before], layers[-1]] if len(set(layers)) == len(layers) > 2 else []
    kept = {id(tensor) for module in exact for tensor in (*module.parameters(), *module.buffers())}
    for tensor in (*copy.parameters(), *copy.buffers()):
        if tensor.is_floating_point() and id(tensor) not in kept:
            tensor.data = _lay_out(tensor.to(dtype))
    full = images.dtype

    def enter(value: Any) -> Any:
        return _lay_out(value.to(dtype)) if _is_float(value) else value

    def leave(value: Any) -> Any:
        return value.to(full) if _is_float(value) else value

    if exact:
        if dtype == torch.bfloat16:
            layers[0].register_forward_hook(lambda module, inputs, output: enter(output))
        else:
            layers[0].register_forward_pre_hook(lambda module, inputs: tuple(map(enter, inputs)))
        layers[-1].register_forward_pre_hook(lambda module, inputs: tuple(map(leave, inputs)))
    cast = leave if exact else enter
    copy.register_forward_pre_hook(
        lambda module, inputs: tuple(cast(_scale(each, 1 / GRADIENT_SCALE)) for each in inputs)
    )
    copy.register_forward_hook(lambda module, inputs, output: _scale(leave(output), GRADIENT_SCALE))
    return copy


class _Scale(torch.autograd.Function):
    """The same value, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.clone()  # models may change their input in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def _scale(value: Any, factor: float) -> Any:
    """Where all paths meet, at the input and at the logits: a path may pass the last layer by."""
    return _Scale.apply(value, factor) if _is_float(value) else value  # type: ignore[no-untyped-call]


def _called(model: nn.Module, images: Tensor) -> list[nn.Module]:
    """The modules without parts, in the order in which a forward calls them."""
    called: list[nn.Module] = []
    leaves = [m for m in model.modules() if not (list(m.children()) or isinstance(m, torch.jit.ScriptModule))]
    hooks = [leaf.register_forward_hook(lambda module, *_: called.append(module)) for leaf in leaves]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _lay_out(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
