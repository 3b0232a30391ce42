"""Checks by accuracy: whether the model is clearly better with other preprocessing or other labels."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose.findings import Finding, make_finding
from marginattack.analysis.diagnose.model_runner import ModelError, ModelRunner
from marginattack.sources.preprocess import NORMALIZATIONS

FAR = 0.1  # below the expected accuracy: model or data are not those for which it was stated
MIN_IMAGES = 32  # for a verdict on accuracy
MIN_IMAGES_FOR_ORDER = 50  # for a verdict on the order of the classes
SCREENED = 48  # images on which an alternative is tried before all of them
GAIN = 0.10  # by how much an alternative must be better
GAIN_OF_LABELS = 0.2
MIN_ACCURACY = 0.3  # of an alternative: a low accuracy may be chance
TIE = 0.02  # alternatives within this of the best are reported too
SIGNIFICANCE = 1e-3  # of an improvement; about fifteen alternatives are tried

USUAL = {"mnist": ((0.1307,), (0.3081,)), **NORMALIZATIONS, "0.5/0.5": ((0.5,), (0.5,))}  # means and deviations


class Alternative(NamedTuple):
    """Another preprocessing of the inputs: the cause that it would reveal, its description, module and transform."""

    code: str
    description: str
    module: nn.Module
    transform: Callable[[Tensor], Tensor]


def alternatives(module: nn.Module, bare: nn.Module | None, preprocessing: Any, x: Tensor) -> Iterator[Alternative]:
    """Yield all alternatives that are tried, the likelier causes first."""
    ours = bare is not None and bool(preprocessing) and preprocessing.get("mean") is not None
    core = module if bare is None else bare
    if ours:
        yield Alternative("normalised-twice", "without the normalisation in front of it", core, lambda x: x)
    code = "normalisation-wrong" if ours else "normalisation-missing"
    for name, mean, std in _usual_normalisations(x):
        normalise = partial(lambda mean, std, x: (x - mean) / std, mean, std)
        undo = partial(lambda mean, std, x: x * std + mean, mean, std)
        yield Alternative(code, f"with pixels normalised by {name}", core, normalise)
        yield Alternative("normalised-twice", f"with the normalisation of {name} undone first", module, undo)
    yield Alternative("expects-0-255", "with pixels from 0 to 255", core, lambda x: 255 * x)
    yield Alternative("inverted-pixels", "with inverted pixels", module, lambda x: 1 - x)
    if x.ndim == 4 and x.shape[1] == 3:
        yield Alternative("channel-order", "with red and blue exchanged", module, lambda x: x.flip(1))


def _usual_normalisations(x: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, mean and deviation, shaped to broadcast against these images."""
    channels = x.shape[1] if x.ndim == 4 else 1
    for name, statistics in USUAL.items():
        if name == "mnist" and channels != 1:
            continue
        mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in statistics)
        if len(mean) not in (1, channels):
            mean, std = mean.mean(), std.mean()
        shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
        yield name, mean.reshape(shape), std.reshape(shape)


def check_labels(labels: Tensor, classes: int) -> Iterator[Finding]:
    """Report labels that are not classes of the model."""
    outside = (labels < 0) | (labels >= classes)
    if bool(outside.any()):
        seen = f"label {int(labels[outside][0])}, but the model has classes 0 to {classes - 1}"
        yield make_finding("labels-outside", seen, int(outside.sum()), len(labels))


def check_preprocessing(
    runner: ModelRunner, logits: Tensor, labels: Tensor, bare: nn.Module | None, preprocessing: Any
) -> list[Finding]:
    """Report the alternative with the highest accuracy, if it is clearly better than the present preprocessing."""
    n, correct = len(labels), logits.argmax(1) == labels
    if n < MIN_IMAGES or _mean(correct) > 1 - GAIN:
        return []
    better: list[tuple[float, Alternative]] = []
    for other in alternatives(runner.module, bare, preprocessing, runner.images):
        few = _classify(runner, other, labels, SCREENED)
        if few is None or _mean(few) - _mean(correct[: len(few)]) < GAIN / 2:
            continue
        every = _classify(runner, other, labels, n)
        if every is not None and is_clearly_better(every, correct) and _mean(every) >= MIN_ACCURACY:
            better.append((_mean(every), other))
    if not better:
        return []
    accuracy, best = max(better, key=lambda pair: pair[0])
    ties = [other.description for score, other in better if other.code == best.code and score > accuracy - TIE]
    seen = f"accuracy {_mean(correct):.0%} as it is, {accuracy:.0%} {' or '.join(ties)}"
    return [make_finding(best.code, seen, int((~correct).sum()), n)]


def _mean(mask: Tensor) -> float:
    return float(mask.double().mean())


def _classify(runner: ModelRunner, other: Alternative, labels: Tensor, n: int) -> Tensor | None:
    """Return which of the first n images an alternative classifies correctly; None if it fails."""
    try:
        logits = runner.logits(other.transform(runner.images[:n]), module=other.module)
    except ModelError:
        return None
    return torch.as_tensor(logits.argmax(1) == labels[:n]) if bool(torch.isfinite(logits).all()) else None


def is_clearly_better(other: Tensor, correct: Tensor, gain: float = GAIN) -> bool:
    """Whether the other predictions are correct more often, by this gain and by McNemar's exact test."""
    won, lost = int((other & ~correct).sum()), int((correct & ~other).sum())
    return won - lost >= gain * len(correct) and _tail_probability(won, won + lost, 0.5) < SIGNIFICANCE


def check_label_order(logits: Tensor, labels: Tensor) -> list[Finding]:
    """Report labels in another order than the model's: shifted by one, or permuted.

    A permutation is fitted on every second image and judged on the others, so that it cannot win by chance.
    """
    classes = logits.shape[1]
    inside = (labels >= 0) & (labels < classes)
    prediction, labels = logits.argmax(1)[inside], labels[inside]
    n, correct = len(labels), prediction == labels
    if n < MIN_IMAGES_FOR_ORDER or _mean(correct) > 0.8:
        return []
    order = _best_permutation(prediction[::2], labels[::2], classes)
    candidates = [(prediction + k == labels, correct, f"with {k:+d} on every prediction") for k in (1, -1)]
    permuted = order[prediction[1::2]] == labels[1::2]
    candidates.append((permuted, correct[1::2], "on held-out images after a permutation of the classes"))
    for other, baseline, how in candidates:
        if is_clearly_better(other, baseline, GAIN_OF_LABELS):
            seen = f"accuracy {_mean(correct):.0%}, but {_mean(other):.0%} {how}"
            return [make_finding("labels-order", seen, int((~correct).sum()), n)]
    return []


def _best_permutation(prediction: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the permutation of the classes under which most predictions are correct."""
    from scipy.optimize import linear_sum_assignment

    counts = torch.bincount(prediction * classes + labels, minlength=classes * classes).view(classes, classes).double()
    counts += 0.5 * torch.eye(classes, device=counts.device)  # a class that is not in the data keeps its index
    _, columns = linear_sum_assignment(counts.cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, device=labels.device)


def check_expected_accuracy(logits: Tensor, labels: Tensor, expected: float | None) -> Iterator[Finding]:
    """Report an accuracy at chance level, or significantly below the expected one; or that there are few samples."""
    n, classes = logits.shape
    hits = int((logits.argmax(1) == labels).sum())
    if n >= MIN_IMAGES and classes > 1 and _tail_probability(hits, n, 1 / classes) > 0.05:
        seen = f"accuracy {hits / n:.1%}, and guessing among {classes} classes gives {1 / classes:.1%}"
        yield make_finding("accuracy-at-chance", seen, n - hits, n)
    elif expected is not None and hits < n * expected and _tail_probability(n - hits, n, 1 - expected) < 0.01:
        grade = "grave" if hits / n < expected - FAR else None
        seen = f"accuracy {hits / n:.1%}, expected {expected:.1%}"
        yield make_finding("accuracy-below-expected", seen, n - hits, n, grade=grade)
    elif n < MIN_IMAGES and hits <= n / 2:
        needed = f"{MIN_IMAGES} are needed, {MIN_IMAGES_FOR_ORDER} for labels"
        seen = f"accuracy {hits / n:.1%} on {n} samples, too few to find the cause: {needed}"
        yield make_finding("too-few-samples", seen, n - hits, n)


def _tail_probability(hits: int, n: int, chance: float) -> float:
    """Return the probability of at least this many hits in n trials."""
    from scipy.special import bdtrc  # scipy.stats takes a second to import

    return float(bdtrc(hits - 1, n, chance)) if hits > 0 else 1.0
