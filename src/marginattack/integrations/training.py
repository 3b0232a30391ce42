"""Margins of a fixed subset during training, every few epochs, within a time limit; logged to the usual trackers."""

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor, nn

from marginattack.analysis.statistics import median_or_nan, robust_accuracy
from marginattack.core.norms import NormLike
from marginattack.errors import InputError, name_type
from marginattack.evaluation import check_distances
from marginattack.margins import Margins
from marginattack.measuring import measure

CHUNK = 16  # samples between two checks of the time limit


def measure_epoch(
    model: nn.Module, images: Tensor, labels: Tensor, epoch: int, *, every: int = 1, seconds: float = 30.0,
    norm: NormLike = "l2", eps: Any = (), budget: int = 100, log: Any = None, step: int | None = None, **options: Any,
) -> dict[str, float]:  # fmt: skip
    """Measure a fixed subset at the end of an epoch, to follow how margins grow during training.

    The samples are measured in order until the time limit, so the first ones can be compared between epochs. The model
    runs in eval mode and is restored afterwards.

    Args:
        model: The model that is trained.
        images: The subset, the same in each epoch.
        labels: Their classes.
        epoch: The number of the epoch, from 0.
        every: Measure every this many epochs, after the last of them.
        seconds: The time limit; samples that were started are finished.
        norm: As for ``measure``.
        eps: A distance, or several, at which robust accuracy is logged.
        budget: Forwards + backwards per sample.
        log: Where to log: a TensorBoard ``SummaryWriter``, the module ``mlflow``, a W&B run, a logger of Lightning, any
            object with ``log_metrics``; or None. The first three also get the margins of the epoch, from which
            the curve of robust accuracy can be read: TensorBoard and W&B as the histogram "margin/distance", MLflow as
            the file margin/curve-STEP.json.
        step: The step under which it is logged; by default the epoch.
        options: Further arguments of ``measure``.

    Returns:
        What was logged: "margin/median", "margin/p10", "margin/p90" (over correctly classified samples),
        "margin/accuracy", "margin/robust_accuracy_EPS" and "margin/samples". Empty if the epoch is skipped.

    Raises:
        InputError: An argument is invalid.

    Example:
        >>> import torch
        >>> from marginattack.integrations.training import measure_epoch
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> for epoch in range(4):
        ...     values = measure_epoch(torch.nn.Identity(), images, labels, epoch, every=4, norm="linf", eps=[0.3])
        >>> round(values["margin/median"], 3), values["margin/robust_accuracy_0.3"]
        (0.275, 0.5)
    """
    if not is_due(epoch, every):
        return {}
    levels = check_distances(eps) if np.size(eps) else ()
    margins = measure_subset(model, images, labels, seconds=seconds, norm=norm, budget=budget, **options)
    values = summarize(margins, levels)
    if log is not None:
        number = epoch if step is None else step
        log_metrics(log, values, number)
        log_curve(log, margins, number)
    return values


def is_due(epoch: int, every: int) -> bool:
    """Whether an epoch is the last of ``every`` epochs."""
    if every < 1:
        raise InputError(f"every is {every}: give a number of epochs, at least 1")
    return (epoch + 1) % every == 0


def measure_subset(
    model: nn.Module, images: Tensor, labels: Tensor, *, seconds: float, norm: NormLike, budget: int, **options: Any
) -> Margins:
    """Measure the samples in order until the time limit."""
    if seconds <= 0:
        raise InputError(f"seconds is {seconds:g}: give a time limit above 0")
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
    return Margins.join(parts)


def summarize(margins: Margins, eps: Sequence[float]) -> dict[str, float]:
    """The metrics of an epoch."""
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
        raise InputError(f"log is {name_type(target)}, which has neither add_scalar, log_metrics nor log: {hint}")


def log_curve(target: Any, margins: Margins, step: int) -> None:
    """Log the margins of correctly classified samples, if the target supports histograms or files."""
    distance = margins.distance[margins.prediction == margins.label].numpy()
    found = np.sort(distance[np.isfinite(distance)])
    if len(found) == 0:
        return
    if hasattr(target, "add_histogram"):
        target.add_histogram("margin/distance", found, step)
    elif getattr(target, "__name__", "") == "mlflow":
        accuracy = [each.accuracy for each in robust_accuracy(distance, len(margins), found)]
        curve = {"eps": found.tolist(), "robust_accuracy": accuracy}
        target.log_dict(curve, f"margin/curve-{step}.json")
    elif type(target).__module__.startswith("wandb."):
        target.log({"margin/distance": import_module("wandb").Histogram(found)}, step=step)
