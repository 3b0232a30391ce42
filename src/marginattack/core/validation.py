"""Validation of models, images, labels and targets; invalid ones raise InputError."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.core.classifier import Classifier
from marginattack.core.types import Labels, Logits, Mask
from marginattack.errors import InputError, name_type, one_line

ROUNDING = 1e-5  # how far outside the bounds, relative to their width, an input may be by rounding
CLAMPED = 1e-3  # and at most this far, for wide bounds
PROBED = 8  # inputs on which a model is tried
NO_LABEL = -1  # the class of a point with logits that are not finite


class OutputError(InputError):
    """A model's output that is not a batch of logits; ``code`` and ``seen`` are those of a diagnosis finding."""

    def __init__(self, code: str, seen: str, hint: str, *, name: str = "model") -> None:
        super().__init__(f"{name} returns {seen}: {hint}")
        self.code, self.seen = code, seen


def check_logits(logits: Any, n: int | None, *, name: str = "model", values: bool = True) -> Tensor:
    """Return the output of a model for n inputs if it is a tensor of finite logits, one row per input.

    Args:
        logits: The output of the model.
        n: The number of inputs; None to check only that the output is a floating-point tensor.
        name: The model, for the message.
        values: Whether to check the values too: finite, and not probabilities.

    Raises:
        OutputError: The output is not a tensor, holds labels, probabilities or a single logit per input, has another
            shape than (n, classes), or is not finite.
    """
    if not isinstance(logits, Tensor):
        hint = "wrap it so that forward returns the logits alone"
        raise OutputError("not-a-tensor", f"{name_type(logits)}, not a tensor of logits", hint, name=name)
    if not logits.is_floating_point():
        kind = _name(logits.dtype)
        raise OutputError("not-floating-point", kind, "it must return floating-point logits, not labels", name=name)
    if n is None:
        return logits
    shape = f"shape {tuple(logits.shape)} for {n} inputs"
    if logits.shape in {(n,), (n, 1)}:
        hint = "wrap it as marginattack.TwoClass(model)"
        raise OutputError("single-logit", f"{shape}, a single logit per input", hint, name=name)
    if logits.ndim != 2 or len(logits) != n:
        raise OutputError("wrong-shape", shape, "it must be (n, classes)", name=name)
    wrong = int((~torch.isfinite(logits)).any(1).sum()) if values else 0
    if wrong:
        seen = f"NaN or infinite logits for {wrong} of the first {n} inputs"
        raise OutputError("non-finite-logits", seen, "check its weights and its input scale", name=name)
    if values and are_probabilities(logits):
        hint = "remove its last softmax, or wrap it to return logits"
        raise OutputError("probabilities", "probabilities (they sum to 1), whose gradients vanish", hint, name=name)
    return logits


def are_probabilities(outputs: Logits) -> bool:
    """Whether all outputs are non-negative and sum to 1."""
    return bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all())


@dataclass(frozen=True, eq=False)
class Batch:
    """Checked inputs on the CPU: images, their labels, for a targeted problem their targets, and their ids."""

    images: Tensor
    labels: Labels
    targets: Labels | None
    ids: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.images)

    def select(self, rows: slice | Tensor) -> "Batch":
        """Select samples."""
        targets = None if self.targets is None else self.targets[rows]
        return replace(self, images=self.images[rows], labels=self.labels[rows], targets=targets, ids=self.ids[rows])

    def reached(self, prediction: Labels) -> Mask:
        """Whether each prediction is adversarial: another class than the label, or the target."""
        if self.targets is not None:
            return prediction == self.targets
        return (prediction != self.labels) & (prediction != NO_LABEL)


def check_batch(classifier: Classifier, images: Any, labels: Any, targets: Any, ids: Any) -> Batch:
    """Check a batch against a classifier whose model is in eval mode.

    Raises:
        InputError: Images, labels, targets, ids or the model's output are invalid or inconsistent.
    """
    x = check_images(classifier, images)
    classes = check_model(classifier, x[:PROBED])
    y = check_labels(labels, len(x), classes, "labels")
    batch = Batch(x, y, None, _check_ids(ids, len(x)), classes)
    if targets is None:
        return batch
    a = check_labels(targets, len(x), classes, "targets")
    if bool((a == y).any()):
        row = int((a == y).nonzero()[0])
        raise InputError(f"targets[{row}] is {int(a[row])}, the label itself: a target must be another class")
    return replace(batch, targets=a)


def check_model(classifier: Classifier, x: Tensor) -> int:
    """The number of classes, from the plain model's output for a few inputs."""
    try:
        with torch.no_grad():
            logits = classifier.logits(x.to(classifier.device))
    except Exception as error:
        shape = tuple(x.shape[1:])
        raise InputError(f"model fails in eval mode on inputs of shape {shape}: {one_line(error)}") from error
    return int(check_logits(logits, len(x)).shape[1])


def check_images(classifier: Classifier, images: Any) -> Tensor:
    """Return images inside the bounds, on the CPU, in the precision of attacks."""
    x = as_tensor(images, "images")
    if x.ndim < 2 or 0 in x.shape:
        hint = "give a non-empty batch, one input per row, such as (n, channels, height, width)"
        raise InputError(f"images have shape {tuple(x.shape)}: {hint}")
    if x.is_complex() or x.dtype == torch.bool:
        raise InputError(f"images are {_name(x.dtype)}: give floating-point pixels")
    if not x.is_floating_point() and not classifier.bounds_stated:
        hint = "pass images / 255 or, if the model takes 0 to 255, bounds=(0, 255)"
        raise InputError(f"images are {_name(x.dtype)} and their scale is not stated: {hint}")
    if not x.is_floating_point() or x.dtype.itemsize < 4:
        x = x.to(torch.float32)
    if classifier.dtype is not None:
        x = x.to(torch.float64 if classifier.dtype == torch.float64 else torch.float32)
    strange = (~torch.isfinite(x)).flatten(1).any(1)
    if bool(strange.any()):
        where = f"{int(strange.sum())} of {len(x)} inputs, first in images[{int(strange.nonzero()[0])}]"
        raise InputError(f"images hold NaN or infinity in {where}: clean the data")
    lo, hi = classifier.bounds_for(x)
    width = torch.where(torch.isfinite(hi - lo), hi - lo, 1)
    unit = torch.finfo(torch.float32).eps
    below, above = (torch.maximum((ROUNDING * width).clamp(max=CLAMPED), 2 * unit * bound.abs()) for bound in (lo, hi))
    if bool((x < lo - below).any()) or bool((x > hi + above).any()):
        bounds = f"[{float(lo.min()):g}, {float(hi.max()):g}]"
        span = f"{float(x.min()):.4g} to {float(x.max()):.4g}, outside the bounds {bounds}"
        hint = "pass pixels, with normalisation inside the model, or state bounds=(lo, hi)"
        raise InputError(f"images span {span}: {hint}")
    return torch.clamp(x, lo, hi).cpu()


def check_labels(labels: Any, n: int, classes: int, what: str) -> Labels:
    """Return one class index per input, on the CPU."""
    y = as_tensor(labels, what)
    if y.ndim != 1:
        raise InputError(f"{what} have shape {tuple(y.shape)}: give one class index per input, shape ({n},)")
    if len(y) != n:
        raise InputError(f"{what} are {len(y)} for {n} images: give one per image")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"{what} are {_name(y.dtype)}: give integer class indices")
    y = y.to(torch.int64).cpu()
    if bool((y < 0).any()) or bool((y >= classes).any()):
        wrong = y[(y < 0) | (y >= classes)]
        raise InputError(f"{what} hold {int(wrong[0])}, but the model has classes 0 to {classes - 1}")
    return y


def _check_ids(ids: Any, n: int) -> Tensor:
    """Return one integer per sample, by default 0, 1, …."""
    if ids is None:
        return torch.arange(n)
    numbers = as_tensor(ids, "ids")
    if numbers.shape != (n,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise InputError(f"ids have shape {tuple(numbers.shape)} and type {numbers.dtype}: give one integer per image")
    return numbers.to(torch.int64).cpu()


def as_tensor(values: Any, what: str) -> Tensor:
    """Return numbers as a tensor; InputError if they are none."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        if array.dtype in (np.uint16, np.uint32, np.uint64):
            array = array.astype(np.int64)
        return torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError):
        raise InputError(
            f"{what} are {name_type(values)}, not an array of numbers: give a tensor or a numpy array"
        ) from None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
