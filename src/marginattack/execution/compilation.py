"""Models compiled by torch for one size of batch; one that cannot be compiled is run as it is, and the reason kept."""

import warnings

import torch
from torch import Tensor, nn

from marginattack.errors import describe

CLOSE = 1e-2  # by how much of the largest logit a compiled model may differ; in bf16 more


class Compiler:
    """Compiled forms of a model, by a key; ``why`` says why there are none."""

    def __init__(self, why: str = "") -> None:
        self.why, self.used = why, False
        self._made: dict[str, nn.Module] = {}

    def __call__(self, model: nn.Module, images: Tensor, key: str) -> Tensor:
        """The model's answer to images of which batches have always the same shape."""
        if not self.why and key not in self._made:
            self._made[key] = self._tried(model, images)
            self.used = not self.why
        answer: Tensor = (model if self.why else self._made[key])(images)
        return answer

    def about(self) -> str:
        """Whether something was compiled, or why not."""
        return self.why or ("compiled" if self.used else "no batch was full enough")

    def clear(self) -> None:
        """Forget them."""
        self._made.clear()

    def _tried(self, model: nn.Module, images: Tensor) -> nn.Module:
        """Compiled, if a forward and a backward succeed."""
        leaf = images.detach().requires_grad_()
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")  # advice to allow tf32
                compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
                found, expected = compiled(leaf), model(images)
                torch.autograd.grad(found.sum(), leaf)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:  # whatever a compiler says
            self.why = f"it cannot be compiled: {describe(error)}"
            return model
        close = max(CLOSE, 8 * torch.finfo(images.dtype).eps)
        if not bool((found - expected).abs().max() <= close * expected.abs().max()):
            self.why = "it answers otherwise when compiled"
            return model
        return compiled
