"""Queries: values and gradients of the constraint at points, and whether they are adversarial."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from marginattack.core import losses
from marginattack.core.calibration import Tolerance
from marginattack.core.fusion import kernel
from marginattack.core.losses import Loss
from marginattack.core.types import Goals, Logits, Mask, Points


class Query(NamedTuple):
    """Some losses of inputs of this shape, with or without their gradients."""

    shape: Size
    losses: tuple[Loss, ...]
    gradients: bool


class Answer(NamedTuple):
    """The answer for n points and k losses."""

    values: Tensor  # (k, n), raised by the decision tolerance
    gradients: Tensor  # (k, n, d); the points themselves if gradients were not requested
    crossed: Mask  # whether the point is adversarial beyond the decision tolerance
    logits: Logits


def evaluate(
    model: Callable[[Tensor], Logits], tolerance: Tolerance, query: Query, points: Points, goals: Goals
) -> Answer:
    """Query a model once, eagerly."""
    label, direction = goals.unbind(1)
    leaf = points.detach().unflatten(1, query.shape).requires_grad_(query.gradients)
    with torch.set_grad_enabled(query.gradients):
        logits = model(leaf)
        if query.gradients and query.losses == (losses.MARGIN,) and (margin := kernel("margin", points)) is not None:
            value, crossed, slopes = margin(logits, goals, tolerance.relative, tolerance.absolute)
            gradient = input_gradient(logits, leaf, keep=False, weight=slopes)
            return Answer(value[None], gradient.flatten(1)[None], crossed, logits.detach())
        values = [direction * loss(logits, label) for loss in query.losses]
    gradients = [input_gradient(v, leaf, keep=v is not values[-1]) if query.gradients else points for v in values]
    logits = logits.detach()
    own, other = losses.compare(logits, label)
    undecided = tolerance.of(losses.scale(logits, own, other))
    return Answer(
        values=(torch.stack(values).detach() + undecided).nan_to_num(0.0),
        gradients=torch.stack(gradients).flatten(2),
        crossed=direction * (own - other) + undecided < 0,
        logits=logits,
    )


def input_gradient(value: Tensor, leaf: Tensor, *, keep: bool, weight: Tensor | None = None) -> Tensor:
    """∂ Σ weight·value / ∂ leaf; zero if the model does not depend on its input or the gradient is not finite."""
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    total: Tensor = _Total.apply(value, torch.ones_like(value) if weight is None else weight)  # type: ignore[no-untyped-call]
    (gradient,) = torch.autograd.grad(total, leaf, retain_graph=keep, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)


class _Total(torch.autograd.Function):
    """A number, never read, whose derivative with respect to the value is the weight.

    If weights are passed to ``torch.autograd.grad``, it imports sympy, which takes up to 3 s in the first pass.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return value.new_empty(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def join_answers(parts: Sequence[Answer]) -> Answer:
    """Join answers for parts of the points."""
    if len(parts) == 1:
        return parts[0]
    values, gradients, crossed, logits = zip(*parts, strict=True)
    return Answer(torch.cat(values, 1), torch.cat(gradients, 1), torch.cat(crossed), torch.cat(logits))
