"""What is refused before anything is measured: models, images, labels and targets that make no sense together."""

from typing import Any

import torch
from torch import Tensor

from marginattack.core.types import Logits
from marginattack.errors import InputError


class OutputError(InputError):
    """A model's output that is not a batch of logits; ``code`` and ``seen`` are those of a diagnosis finding."""

    def __init__(self, code: str, seen: str, hint: str, *, name: str = "model") -> None:
        super().__init__(f"{name} returns {seen}: {hint}")
        self.code, self.seen = code, seen


def check_logits(logits: Any, n: int | None, *, name: str = "model", values: bool = True) -> Tensor:
    """Return the output of a model for n inputs if it is a tensor of finite logits, one row per input.

    Args:
        logits: The output of the model.
        n: The number of inputs; None to check nothing but that the output is a floating-point tensor.
        name: The model, for the message.
        values: Whether to check the values too: finite, and no probabilities.

    Raises:
        OutputError: The output is no tensor, holds labels, probabilities or a single logit per input, has another
            shape than (n, classes), or is not finite.
    """
    if not isinstance(logits, Tensor):
        hint = "wrap it so that forward returns the logits alone"
        raise OutputError("not-a-tensor", f"a {type(logits).__name__}, not a tensor of logits", hint, name=name)
    if not logits.is_floating_point():
        kind = str(logits.dtype).removeprefix("torch.")
        raise OutputError("not-floating-point", kind, "it must return floating-point logits, not labels", name=name)
    if n is None:
        return logits
    shape = f"shape {tuple(logits.shape)} for {n} inputs"
    if logits.shape in {(n,), (n, 1)}:
        hint = "wrap it as marginattack.TwoClass(model)"
        raise OutputError("single-logit", f"{shape}, a single logit per input", hint, name=name)
    if logits.ndim != 2 or len(logits) != n:
        raise OutputError("wrong-shape", shape, "it must be (n, classes)", name=name)
    wrong = int((~torch.isfinite(logits)).any(1).sum()) if values else 0
    if wrong:
        seen = f"NaN or infinite logits for {wrong} of the first {n} inputs"
        raise OutputError("non-finite-logits", seen, "check its weights and its input scale", name=name)
    if values and are_probabilities(logits):
        hint = "remove its last softmax, or wrap it to return logits"
        raise OutputError("probabilities", "probabilities (they sum to 1), whose gradients vanish", hint, name=name)
    return logits


def are_probabilities(outputs: Logits) -> bool:
    """Whether all outputs are non-negative and sum to 1."""
    return bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all())
