"""Passes outside an attack: logits of many images, as an evaluator returns them in an attack."""

import torch
from torch import Tensor

from marginattack.core.tensors import pad_rows
from marginattack.core.types import Logits
from marginattack.execution.evaluator import ModelEvaluator
from marginattack.execution.graphs import graph_rows


def out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def logits_in_batches(evaluator: ModelEvaluator, images: Tensor) -> Logits:
    """The logits of all images, on the CPU."""
    device = evaluator.copies.classifier.device
    with evaluator.flags():
        return torch.cat([evaluator.logits(batch.to(device)).cpu() for batch in images.split(evaluator.batch_size)])


def compiled_logits(evaluator: ModelEvaluator, images: Tensor) -> list[Logits]:
    """The logits as the compiled model returns them in an attack on these images; none where it is not compiled."""
    full = evaluator.full_batch
    if not full or graph_rows(len(images), full) != full:
        return []
    batch = pad_rows(images, full).to(evaluator.copies.classifier.device).requires_grad_()
    with torch.enable_grad(), evaluator.flags():
        return [evaluator.logits(batch, repeated=True).detach()[: len(images)].cpu()]
