"""Image classifiers of MAITE's protocol as modules: ``ma.measure(as_module(model), images, labels)``."""

from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.validation import are_probabilities

TINY = 1e-30  # a probability of 0 has no logarithm


class Classifier(nn.Module):
    """Logits of a model that takes a sequence of images and returns a sequence of scores."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        inner = getattr(model, "__dict__", {}).values()
        self.networks = nn.ModuleList(each for each in inner if isinstance(each, nn.Module))  # for mode and device
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scores = torch.stack([torch.as_tensor(each) for each in self.model(list(images))]).to(images)
        return scores.clamp(min=TINY).log() if are_probabilities(scores.detach()) else scores


def as_module(model: Any) -> nn.Module:
    """A MAITE image classifier as a module for ``ma.measure``.

    Args:
        model: Takes a sequence of images (c, h, w) and returns one array of logits or probabilities per image. Attacks
            that use gradients need scores that are tensors with a gradient; for others choose attack="boundary", or
            ``ma.attacks.Square``.

    Returns:
        The module. Probabilities become their logarithms, which are logits of the same model.

    Example:
        >>> import torch, marginattack as ma
        >>> from marginattack.integrations.maite import as_module
        >>> class Model:
        ...     metadata = {"id": "halves"}
        ...     def __call__(self, batch):
        ...         return [torch.softmax(torch.stack([x[:, 0].sum(), x[:, 1].sum()]), 0) for x in batch]
        >>> images = torch.tensor([0.9, 0.2]).view(1, 1, 2)
        >>> round(float(ma.measure(as_module(Model()), images[None, 0], [0], "linf").distance), 3)
        0.35
    """
    return Classifier(model)
