"""Models compiled by torch for one size of batch; one that cannot be compiled is run as it is, and the reason kept."""

import warnings

import torch
from torch import Tensor, nn

from marginattack.words import told


class Compiler:
    """Compiled forms of a model, by a key; ``why`` says why there are none."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        self._made: dict[str, nn.Module] = {}

    def __call__(self, model: nn.Module, images: Tensor, key: str) -> Tensor:
        """The model's answer to images of which batches have always the same shape."""
        if not self.why and key not in self._made:
            self._made[key] = self._tried(model, images)
        answer: Tensor = (model if self.why else self._made[key])(images)
        return answer

    def clear(self) -> None:
        """Forget them: the model may change."""
        self._made.clear()

    def _tried(self, model: nn.Module, images: Tensor) -> nn.Module:
        """Compiled, if a forward and a backward succeed."""
        leaf = images.detach().requires_grad_()
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")  # advice to allow tf32
                compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
                torch.autograd.grad(compiled(leaf).sum(), leaf)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler says
            self.why = f"it cannot be compiled: {told(error)}"
            return model
        return compiled
