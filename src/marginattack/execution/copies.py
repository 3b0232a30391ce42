"""Faster copies of a frozen model: batch normalisations folded, bf16."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from marginattack.core.classifier import Classifier
from marginattack.execution.folding import fold


class Copies:
    """The model of a classifier in eval mode and its copies, each made when it is first needed."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier
        self._folded: nn.Module | None = None
        self._bf16: nn.Module | None = None

    def fold(self, images: Tensor) -> None:
        """Fold batch normalisations into convolutions, as far as these images show that nothing changes."""
        if self._folded is None:
            self._folded = fold(self.classifier.model, self.classifier.cast(images)) or self.classifier.model

    @property
    def fast(self) -> nn.Module:
        """The model that attacks query: folded where that was possible."""
        return self._folded or self.classifier.model

    @property
    def bf16(self) -> nn.Module:
        """A copy in bf16, channels last."""
        if self._bf16 is None:
            self._bf16 = deepcopy(self.fast).to(torch.bfloat16)
            self._bf16 = self._bf16.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._bf16
