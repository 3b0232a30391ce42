"""One look at the model: beliefs and their gradients at some points."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Size, Tensor

from marginattack.core import losses, norms
from marginattack.core.classifier import Classifier
from marginattack.core.losses import Belief
from marginattack.core.types import Labels, Points, Scalars
from marginattack.execution.graphs import Look


class Rival(NamedTuple):
    """Another class, and how it is reached: c and ∇c towards it."""

    label: Labels
    c: Scalars
    g: Points


def look(
    classifier: Classifier, shape: Size, of: Sequence[Belief], gradients: bool, points: Points, aim: Tensor
) -> Look:
    """Look once. The aim of each point is a class, and 1 to leave it, -1 to reach it, 0 to wait."""
    label, sign = aim.unbind(1)
    leaf = points.detach().unflatten(1, shape).requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        logits = classifier.logits(leaf, often=gradients and len(of) == 1)
        if gradients and list(of) == [losses.MARGIN] and (kernels := norms.fused(points)) is not None:
            value, crossed, slopes_of_logits = kernels.margin(logits, aim, *classifier.leads(points))
            slope = gradient(logits, leaf, keep=False, along=slopes_of_logits)
            return Look(value[None], slope.flatten(1)[None], crossed, logits.detach())
        beliefs = [sign * belief(logits, label) for belief in of]
    slopes = [gradient(v, leaf, keep=v is not beliefs[-1]) if gradients else points for v in beliefs]
    logits = logits.detach()
    own, other = losses.compared(logits, label)
    rounding = classifier.lead(points, losses.scale(logits, own, other))
    return Look(
        values=(torch.stack(beliefs).detach() + rounding).nan_to_num(0.0),
        slopes=torch.stack(slopes).flatten(2),
        crossed=sign * (own - other) + rounding < 0,
        logits=logits,
    )


def gradient(value: Tensor, leaf: Tensor, *, keep: bool, along: Tensor | None = None) -> Tensor:
    """∂ Σ value / ∂ leaf, weighed; zero where the model does not depend on its input or has no finite slope."""
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    along = torch.ones_like(value) if along is None else along
    (slope,) = torch.autograd.grad(value, leaf, along, retain_graph=keep, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0)


def joined(parts: Sequence[Look]) -> Look:
    """Looks at parts of the points as one."""
    if len(parts) == 1:
        return parts[0]
    values, slopes, crossed, logits = zip(*parts, strict=True)
    return Look(torch.cat(values, 1), torch.cat(slopes, 1), torch.cat(crossed), torch.cat(logits))
