"""Problems that the tests share."""

from typing import Any

import torch
from models import Function, inputs, smooth
from torch import Tensor, nn

import marginattack as ma


def posed(model: nn.Module, images: Tensor, labels: Tensor, *, chunk: int = 512, **settings: Any) -> ma.Problem:
    classifier = ma.Classifier(model, chunk=chunk)
    classifier.accept(images, labels)
    return ma.Problem(classifier, images, labels, ma.L2, **settings)


def small(**settings: Any) -> ma.Problem:
    model = smooth()
    return posed(model, *inputs(model), **settings)


def line(x: Tensor) -> Tensor:
    """Class 0 left of x₀ = 0.5, class 1 right of it."""
    return torch.stack([0.5 - x[:, 0], x[:, 0] - 0.5], 1)


def on_line(**settings: Any) -> ma.Problem:
    return posed(Function(line), torch.tensor([[0.2, 0.5]], dtype=torch.float64), torch.tensor([0]), **settings)
