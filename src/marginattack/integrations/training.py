"""Margins of a fixed subset during training, every few epochs, within a time limit; logged where people log."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from marginattack.analysis.statistics import median_or_nan, robust_accuracy
from marginattack.core.norms import NormLike
from marginattack.errors import InputError
from marginattack.margins import Margins
from marginattack.measuring import measure

CHUNK = 16  # samples between two looks at the clock


def measure_epoch(
    model: nn.Module, images: Tensor, labels: Tensor, epoch: int, *, every: int = 1, seconds: float = 30.0,
    norm: NormLike = "l2", eps: float | Sequence[float] = (), budget: int = 100, log: Any = None,
    step: int | None = None, **options: Any,
) -> dict[str, float]:  # fmt: skip
    """Measure a fixed subset at the end of an epoch: how do margins grow while the model learns?

    The samples are measured in their order until the time is spent, so those that are compared between epochs are the
    first ones. The model is in eval mode meanwhile, and as it was afterwards.

    Args:
        model: The model that is trained.
        images: The subset, the same in each epoch.
        labels: Their classes.
        epoch: The number of the epoch, from 0.
        every: Measure after every so many epochs: the last of them.
        seconds: The time limit; the samples that are begun are finished.
        norm: As for ``measure``.
        eps: A distance, or several, at which robust accuracy is logged.
        budget: Forwards + backwards per sample.
        log: Where to log: a TensorBoard ``SummaryWriter``, the module ``mlflow`` or an ``MlflowClient``-like object
            with ``log_metrics``, a W&B run, a logger of Lightning; or None.
        step: The step under which it is logged; the epoch unless stated.
        options: Further arguments of ``measure``.

    Returns:
        What was logged: "margin/median", "margin/p10", "margin/p90" (over samples that are classified correctly),
        "margin/accuracy", "margin/robust_accuracy_EPS" and "margin/samples". Empty where the epoch is skipped.

    Raises:
        InputError: An argument makes no sense.

    Example:
        >>> import torch
        >>> from marginattack.integrations.training import measure_epoch
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> for epoch in range(4):
        ...     values = measure_epoch(torch.nn.Identity(), images, labels, epoch, every=4, norm="linf", eps=[0.3])
        >>> round(values["margin/median"], 3), values["margin/robust_accuracy_0.3"]
        (0.275, 0.5)
    """
    if every < 1 or seconds <= 0:
        raise InputError(f"every is {every} and seconds is {seconds:g}: both must be above 0")
    if (epoch + 1) % every:
        return {}
    began, parts = time.monotonic(), list[Margins]()
    for first in range(0, len(images), CHUNK):
        rows = slice(first, first + CHUNK)
        if parts and time.monotonic() - began > seconds:
            break
        ids = range(len(images))[rows]
        found = measure(
            model, images[rows], labels[rows], norm, budget=budget, ids=np.array(ids), diagnose=False, **options
        )
        parts.append(found)
    values = summarize(Margins.join(parts), eps if isinstance(eps, Sequence) else [eps])
    if log is not None:
        log_metrics(log, values, epoch if step is None else step)
    return values


def summarize(margins: Margins, eps: Sequence[float]) -> dict[str, float]:
    """The figures of an epoch."""
    distance = margins.distance[margins.prediction == margins.label].numpy()
    robust = robust_accuracy(distance, len(margins), np.array([-1.0, *eps]))
    low, high = (float(np.quantile(distance, q, method="lower")) if len(distance) else float("nan") for q in (0.1, 0.9))
    values = {
        "margin/median": median_or_nan(distance), "margin/p10": low, "margin/p90": high,
        "margin/accuracy": robust[0].accuracy, "margin/samples": float(len(margins)),
    }  # fmt: skip
    return values | {f"margin/robust_accuracy_{e:.4g}": each.accuracy for e, each in zip(eps, robust[1:], strict=True)}


def log_metrics(target: Any, values: Mapping[str, float], step: int) -> None:
    """Log to TensorBoard, MLflow, a logger of Lightning, or W&B."""
    if hasattr(target, "add_scalar"):
        for name, value in values.items():
            target.add_scalar(name, value, step)
    elif hasattr(target, "log_metrics"):
        target.log_metrics(dict(values), step=step)
    elif hasattr(target, "log"):
        target.log(dict(values), step=step)
    else:
        hint = "give a SummaryWriter, mlflow, a W&B run or a logger of Lightning"
        raise InputError(f"log is a {type(target).__name__}, which has neither add_scalar, log_metrics nor log: {hint}")
