"""How much a low precision changes the logits and gradients of a model, and the fastest one that changes little."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from marginattack.core import losses
from marginattack.core.types import Logits
from marginattack.core.validation import Batch
from marginattack.execution.evaluator import ModelEvaluator
from marginattack.execution.passes import logits_in_batches

CANDIDATES = ("fp16", "bf16")  # the finest first; tf32 is slower, and a flag of the whole process
TRIED = 32  # inputs whose gradients are compared
MOST_ERROR = 0.002  # largest change of a logit, as a share of the median gap between the highest two
TYPICAL = 0.5  # of it, the most that the logits of the median input may change
LEAST_COSINE = 0.99  # of the gradients of an input in both precisions
MOST_TURNED = 0.05  # share of the inputs whose gradients may differ more: at a kink, rounding decides
CLEAR = 10  # tolerances of the low precision by which an input must be away from the boundary


def has_low_precision(device: torch.device) -> bool:
    """Whether this device multiplies faster in 16 bits."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def choose_precision(exact: ModelEvaluator, images: Tensor, logits: Logits) -> str:
    """The fastest precision that hardly changes decisions about these images, whose logits are given.

    An error moves the boundary by about its share of the constraint at the input.
    """
    classifier = exact.copies.classifier
    if not has_low_precision(classifier.device) or {classifier.dtype, images.dtype} != {torch.float32}:
        return "float32"
    few = images[:TRIED].to(classifier.device)
    pair = logits[:TRIED].topk(2, dim=1).indices.to(classifier.device)
    gradient = gradients(exact, few, pair)
    for precision in CANDIDATES:
        try:
            low = replace(exact, precision=precision)
            largest, typical = logit_error(low, images, logits)  # not a number: it overflows
            small = largest <= MOST_ERROR and typical <= TYPICAL * MOST_ERROR
            if small and not turned(gradient, gradients(low, few, pair)):
                return precision
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:  # a model may do anything in a precision that it was not made for
            continue
    return "float32"


def logit_error(low: ModelEvaluator, images: Tensor, logits: Logits) -> tuple[float, float]:
    """The largest change of a logit and that of the median image, as shares of the median gap of the highest two."""
    highest = logits.topk(2, dim=1).values
    error = (logits_in_batches(low, images) - logits).abs().amax(1) / (highest[:, 0] - highest[:, 1]).median()
    return float(error.max()), float(error.median())


def lowest_precision(precisions: Sequence[str]) -> str:
    """The precision that is not float32, if there is one."""
    return next((precision for precision in precisions if precision != "float32"), "float32")


def by_clarity(
    evaluator: ModelEvaluator, batch: Batch, logits: Logits, rows: Tensor
) -> list[tuple[Tensor, ModelEvaluator]]:
    """These rows: those that low precision can decide, and the others, for float32; all for it if most are unclear."""
    if evaluator.search is None:
        return [(rows, evaluator)]
    own, other = losses.compare(logits[rows], (batch.labels if batch.targets is None else batch.targets)[rows])
    clear = (own - other).abs() > CLEAR * evaluator.search[1].absolute
    exact = replace(evaluator, search=None)
    if 2 * int(clear.sum()) < len(rows):
        return [(rows, exact)]
    return [(part, each) for part, each in ((rows[clear], evaluator), (rows[~clear], exact)) if len(part)]


def gradients(evaluator: ModelEvaluator, images: Tensor, pair: Tensor) -> Tensor:
    """The gradients of the difference between the two logits of each pair, flat."""
    leaf = images.detach().clone().requires_grad_()
    with torch.enable_grad(), evaluator.flags():
        own, other = evaluator.logits(leaf).gather(1, pair).T
        (gradient,) = torch.autograd.grad((own - other).sum(), leaf)
    return gradient.flatten(1)


def turned(gradient: Tensor, other: Tensor) -> bool:
    """Whether more than a few gradients differ in direction between the two precisions; a NaN counts as different."""
    return float((~(cosine_similarity(gradient, other) >= LEAST_COSINE)).double().mean()) > MOST_TURNED
