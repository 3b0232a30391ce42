"""Models compiled by torch.compile for one batch size; one that cannot be compiled runs eagerly."""

import warnings

import torch
from torch import Tensor, nn

from marginattack.errors import describe

CLOSE = 1e-2  # the largest difference of a compiled model's logits, as a share of the largest logit; more in bf16


class Compiler:
    """Compiled models by precision; ``why_not`` says why there are none."""

    def __init__(self, why_not: str = "") -> None:
        self.why_not, self.used = why_not, False
        self._made: dict[str, nn.Module] = {}

    def __call__(self, model: nn.Module, images: Tensor, precision: str) -> Tensor:
        """The model's output for a full batch."""
        if not self.why_not and precision not in self._made:
            self._made[precision] = self._compile(model, images)
            self.used = not self.why_not
        logits: Tensor = (model if self.why_not else self._made[precision])(images)
        return logits

    def describe(self) -> str:
        """Whether the model was compiled, or why not."""
        return self.why_not or ("compiled" if self.used else "no batch was full")

    def clear(self) -> None:
        """Release all compiled models."""
        self._made.clear()

    def _compile(self, model: nn.Module, images: Tensor) -> nn.Module:
        """The compiled model, if a forward and a backward succeed and the logits agree."""
        leaf = images.detach().requires_grad_()
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")  # it advises to allow tf32
                compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
                found, expected = compiled(leaf.clone()), model(images.clone())  # it may edit its input
                torch.autograd.grad(found.sum(), leaf)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # a compiler may raise anything
            self.why_not = f"it cannot be compiled: {describe(error)}"
            return model
        close = max(CLOSE, 8 * torch.finfo(images.dtype).eps)
        if not bool((found - expected).abs().max() <= close * expected.abs().max()):
            self.why_not = "the compiled model returns other logits"
            return model
        return compiled
