"""Checks of the outputs: shape, values, and whether they are a function of the input."""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose.findings import Finding, make_finding
from marginattack.analysis.diagnose.model_runner import ModelRunner, count_autograd_calls
from marginattack.core.consistency import CHECKED, find_inconsistency
from marginattack.core.validation import OutputError, are_probabilities, check_logits
from marginattack.errors import describe


def check_structure(runner: ModelRunner) -> list[Finding]:
    """Report a model that returns no logits, which makes all further checks impossible."""
    x = runner.images[:8]
    n = len(x)
    try:
        with torch.no_grad():
            output = runner.module(x.clone())
    except Exception as error:
        return [_explain_failure(runner, x, error)]
    try:
        check_logits(output, n, values=False)
    except OutputError as error:
        return [make_finding(error.code, f"the model returns {error.seen}", n, n)]
    return []


def _explain_failure(runner: ModelRunner, x: Tensor, error: Exception) -> Finding:
    """Explain why a forward without gradients failed: the model needs gradients, or it is broken."""
    with torch.enable_grad(), count_autograd_calls() as engine, suppress(Exception):
        runner.module(x.clone().requires_grad_())
        if engine.call_count:
            seen = f"forward calls autograd and runs only with gradients enabled; without: {describe(error)}"
            return make_finding("gradient-in-forward", seen, len(x), len(x), grade="grave")
    return make_finding("model-fails", f"on inputs of shape {tuple(x.shape[1:])}: {describe(error)}", len(x), len(x))


def check_autograd_in_forward(runner: ModelRunner) -> Iterator[Finding]:
    """Report a forward that calls autograd."""
    x = runner.images[:4]
    with count_autograd_calls() as engine:
        runner.call(x.clone())
    if engine.call_count:
        seen = f"one forward calls autograd {engine.call_count} times"
        yield make_finding("gradient-in-forward", seen, len(x), len(x))


def check_finite(runner: ModelRunner, logits: Tensor) -> Iterator[Finding]:
    """Report NaN or infinite logits, on the images or on noise."""
    wrong = ~torch.isfinite(logits).all(1)
    if bool(wrong.any()):
        seen = f"NaN or infinite logits, first for image {int(wrong.nonzero()[0])}"
        yield make_finding("non-finite-logits", seen, int(wrong.sum()), len(logits))
        return
    on_noise = int((~torch.isfinite(runner.logits(runner.noise(8, draw=1))).all(1)).sum())
    if on_noise:
        yield make_finding("non-finite-on-noise", "NaN or infinite logits for images of uniform noise", on_noise, 8)


def check_values(logits: Tensor, images: Tensor | None = None) -> Iterator[Finding]:
    """Report constant logits, unless the images are the same too, and outputs that are not logits.

    Log-probabilities are as good as logits.
    """
    differ = images is None or bool((images != images[:1]).any())
    n, scale = len(logits), float(logits.abs().max())
    if n > 1 and differ and bool((logits.amax(0) - logits.amin(0) <= 1e-7 * logits.abs().amax(0)).all()):
        yield make_finding("constant-logits", "the logits are the same for every image", n, n)
    elif are_probabilities(logits):
        ones = int((logits.amax(1) == 1).sum())
        seen = f"the outputs are non-negative and sum to 1; for {ones} of {n} images one output is exactly 1"
        yield make_finding("probabilities", seen, n, n)
    elif n >= 8 and float(logits.min()) >= 0 and 0.5 < scale <= 1 + 1e-6:
        ends = float(((logits < 1e-6) | (logits > 1 - 1e-6)).double().mean())
        seen = f"all outputs are between 0 and 1 and do not sum to 1; {ends:.0%} are within 1e-6 of 0 or 1"
        yield make_finding("sigmoid-outputs", seen, n, n)


def check_determinism(runner: ModelRunner) -> Iterator[Finding]:
    """Report a model whose logits for an input differ between forwards, or with the composition of the batch."""
    x = runner.images[:CHECKED]
    training = [type(module).__name__ for module in runner.module.modules() if module.training]
    code, affected, _, seen = find_inconsistency(runner.logits, x, runner.epsilon) or ("", 0, 0, "")
    if training:
        kinds = sorted(set(training))
        modules = f"{len(training)} modules ({', '.join(kinds[:3])}{', …' if len(kinds) > 3 else ''}) ignore eval()"
        seen = f"{modules}, and {seen}" if affected else f"{modules}, without effect on the logits"
        code, grade = "stays-in-train-mode", "grave" if affected else "note"
        yield make_finding(code, seen, affected or len(x), len(x), grade=grade)
    elif affected:
        yield make_finding(code, seen, affected, len(x))


def find_quantised_layers(module: nn.Module) -> list[str]:
    """Return the types of the quantised layers of a model."""
    kinds = set()
    for part in module.modules():
        package = type(part).__module__
        quantised = ".quantized" in package and ".qat" not in package
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                integer = tensor.dtype in (torch.int8, torch.uint8) and name.endswith("weight")
                quantised |= tensor.is_quantized or integer
        if quantised:
            kinds.add(type(part).__name__)
    return sorted(kinds)
