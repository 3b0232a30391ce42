"""Problems that the tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from models import Function, inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.execution.session import Session, open_session


@contextmanager
def validated(
    classifier: ma.Classifier, images: Tensor, labels: Tensor, targets: Tensor | None = None, ids: Any = None
) -> Iterator[tuple[Session, Any]]:
    """A session and a validated batch."""
    with open_session(classifier) as session:
        yield session, session.validate(images, labels, targets, ids)


def pose(
    model: nn.Module, images: Tensor, labels: Tensor, *, norm: ma.Norm = ma.L2, batch_size: int = 512,
    targets: Tensor | None = None, ids: Any = None, **settings: Any,
) -> ma.Problem:  # fmt: skip
    """A problem of a model that works in any mode, so that it can be queried after its session."""
    with validated(ma.Classifier(model, batch_size=batch_size), images, labels, targets, ids) as (session, batch):
        return session.problem(batch, norm, **settings)


def small(**settings: Any) -> ma.Problem:
    model = smooth()
    return pose(model, *inputs(model), **settings)


def line(x: Tensor) -> Tensor:
    """Class 0 left of x₀ = 0.5, class 1 right of it."""
    return torch.stack([0.5 - x[:, 0], x[:, 0] - 0.5], 1)


def on_line(**settings: Any) -> ma.Problem:
    return pose(Function(line), torch.tensor([[0.2, 0.5]], dtype=torch.float64), torch.tensor([0]), **settings)
