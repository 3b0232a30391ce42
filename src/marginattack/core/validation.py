"""What is refused before anything is measured: models, images, labels and targets that make no sense together."""

from typing import Any

import torch
from torch import Tensor

from marginattack.core.types import Logits
from marginattack.errors import InputError


def check_logits(logits: Any, n: int) -> Logits:
    """Return the output of a model for n inputs if it is a tensor of finite logits, one row per input.

    Raises:
        InputError: The output is no tensor, holds labels, probabilities or a single logit per input, has another
            shape than (n, classes), or is not finite.
    """
    if not isinstance(logits, Tensor):
        hint = "wrap it so that forward returns the logits alone"
        raise InputError(f"model returns a {type(logits).__name__}, not a tensor of logits: {hint}")
    if not logits.is_floating_point():
        kind = str(logits.dtype).removeprefix("torch.")
        raise InputError(f"model returns {kind}: it must return floating-point logits, not labels")
    if logits.shape in {(n,), (n, 1)}:
        raise InputError("model returns a single logit per input: wrap it as marginattack.TwoClass(model)")
    if logits.ndim != 2 or len(logits) != n:
        raise InputError(f"model returns shape {tuple(logits.shape)} for {n} inputs: it must be (n, classes)")
    wrong = int((~torch.isfinite(logits)).any(1).sum())
    if wrong:
        which = f"{wrong} of the first {n} inputs"
        raise InputError(f"model returns NaN or infinite logits for {which}: check its weights and its input scale")
    if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all()):
        hint = "remove its last softmax, or wrap it to return logits"
        raise InputError(f"model returns probabilities (they sum to 1), whose gradients vanish: {hint}")
    return logits
