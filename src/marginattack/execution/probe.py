"""What passes on the first few inputs show of a model, and what one input takes of memory."""

import sys
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marginattack.core.calibration import batch_noise
from marginattack.core.types import Logits
from marginattack.execution.evaluator import ModelEvaluator

LARGEST_BLOCK = 32 << 20  # bytes: glibc returns larger blocks to the system, and each use maps and clears them anew


@dataclass(frozen=True)
class Probe:
    """The model's batch noise, whether it takes images channels last and edits its input, and the inputs per pass."""

    classes: int = 0
    noise: float = 0.0
    channels_last: bool = False
    edits_input: bool = False
    rows_per_pass: int = sys.maxsize  # on a CPU more of them are slower

    def with_passes(self, evaluator: ModelEvaluator, x: Tensor, plain: Logits) -> "Probe":
        """The probe with what passes on these inputs show; ``plain`` are the plain model's logits."""
        alone = torch.cat([evaluator.logits(one) for one in x.split(1)])
        plain = plain.to(alone.dtype)
        return replace(
            self, noise=batch_noise(float((alone - plain).abs().max()), plain),
            channels_last=takes_channels_last(evaluator, x, plain), rows_per_pass=rows_per_pass(evaluator, x[0]),
        )  # fmt: skip


def takes_channels_last(evaluator: ModelEvaluator, x: Tensor, logits: Logits) -> bool:
    """Whether images may be laid out channels last, which on a CPU makes convolutions 10 to 20 % faster."""
    if x.ndim != 4 or x.device.type != "cpu":
        return False
    try:
        found = replace(evaluator, channels_last=True).logits(x)
    except RuntimeError:  # a model that views its features as flat rows needs them contiguous
        return False
    return torch.allclose(found, logits.to(x.dtype), rtol=1e-3, atol=1e-3)


def rows_per_pass(evaluator: ModelEvaluator, image: Tensor) -> int:
    """How many inputs a pass on a CPU may have so that no tensor exceeds ``LARGEST_BLOCK``; elsewhere any number."""
    if image.device.type != "cpu":
        return sys.maxsize
    return max(1, LARGEST_BLOCK // max(kept_tensors(evaluator, image), default=1))


def kept_tensors(evaluator: ModelEvaluator, image: Tensor) -> list[int]:
    """The bytes per input of each tensor that a forward keeps for its backward, and of the input.

    What does not grow with the batch, as weights and what a model computes of them, is not counted.
    """
    one, two = (_kept(evaluator, image.expand(n, *image.shape)) for n in (1, 2))
    grown = [b - a for a, b in zip(one, two, strict=False) if b > a]
    return [image.numel() * image.element_size(), *grown]


def _kept(evaluator: ModelEvaluator, images: Tensor) -> list[int]:
    """The bytes of each tensor that a forward keeps for its backward, in the order of their use; each counts once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.numel() * tensor.element_size())
        return tensor

    points = images.to(evaluator.copies.classifier.device, copy=True).contiguous().requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with suppress(RuntimeError), torch.enable_grad(), hooks:  # torch.func inside a model excludes hooks
        evaluator.logits(points).sum()
    return list(kept.values())
