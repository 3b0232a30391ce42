"""What the labels show: whether the model would do clearly better with other preprocessing or other labels."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose.causes import Finding, found
from marginattack.analysis.diagnose.subject import Broken, Subject

FEWEST = 32  # images for a verdict on accuracy
FEWEST_FOR_ORDER = 50  # images for a verdict on the order of the classes
SCREEN = 48  # images on which an alternative is tried before all of them are spent on it
GAIN = 0.10  # how much better an alternative must be
CURED = 0.3  # the accuracy that an alternative must reach: from nothing to a little is chance
TIE = 0.02  # alternatives that do as well as the best are named with it
SURE = 1e-3  # the p-value that it must reach; some fifteen alternatives are tried

# Means and deviations in use, by data set.
USUAL: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "0.5/0.5": ((0.5,), (0.5,)),
}


class Alternative(NamedTuple):
    """Another way to feed a model: the cause that it would show, in words, and how."""

    code: str
    words: str
    module: nn.Module
    feed: Callable[[Tensor], Tensor]


def alternatives(module: nn.Module, bare: nn.Module | None, preprocessing: Any, x: Tensor) -> Iterator[Alternative]:
    """Every way to feed these images that is tried, the likelier causes first."""
    ours = bool(preprocessing) and preprocessing.get("mean") is not None
    core = module if bare is None else bare
    if bare is not None and ours:
        yield Alternative("normalised-twice", "without the normalisation in front of it", bare, lambda x: x)
    code = "normalisation-wrong" if ours and bare is not None else "normalisation-missing"
    for name, mean, std in _fitting(x):
        yield Alternative(code, f"with pixels normalised by {name}", core, partial(_normalised, mean=mean, std=std))
        undone = f"with the normalisation of {name} undone first"
        yield Alternative("normalised-twice", undone, module, partial(_restored, mean=mean, std=std))
    yield Alternative("expects-0-255", "with pixels from 0 to 255", core, lambda x: 255 * x)
    yield Alternative("inverted-pixels", "with inverted pixels", module, lambda x: 1 - x)
    if x.ndim == 4 and x.shape[1] == 3:
        yield Alternative("channel-order", "with red and blue exchanged", module, lambda x: x.flip(1))


def _normalised(x: Tensor, *, mean: Tensor, std: Tensor) -> Tensor:
    return (x - mean) / std


def _restored(x: Tensor, *, mean: Tensor, std: Tensor) -> Tensor:
    return x * std + mean


def _fitting(x: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The usual means and deviations, as they broadcast against these images."""
    channels = x.shape[1] if x.ndim == 4 else 1
    for name, pair in USUAL.items():
        if name == "mnist" and channels != 1:
            continue
        mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in pair)
        if len(mean) not in (1, channels):
            mean, std = mean.mean(), std.mean()
        shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
        yield name, mean.reshape(shape), std.reshape(shape)


def feeding(
    subject: Subject, right: Tensor, labels: Tensor, bare: nn.Module | None, preprocessing: Any
) -> list[Finding]:
    """The alternative that the model does best with, if that is clearly better than what it is fed."""
    n = len(right)
    if n < FEWEST or float(right.double().mean()) > 1 - GAIN:
        return []
    better: list[tuple[float, Alternative]] = []
    for other in alternatives(subject.module, bare, preprocessing, subject.images):
        few = _rightly(subject, other, labels, SCREEN)
        if few is None or float(few.double().mean() - right[: len(few)].double().mean()) < GAIN / 2:
            continue
        every = _rightly(subject, other, labels, n)
        if every is not None and clearly_better(every, right) and float(every.double().mean()) >= CURED:
            better.append((float(every.double().mean()), other))
    if not better:
        return []
    share, best = max(better, key=lambda pair: pair[0])
    equal = [other.words for other_share, other in better if other.code == best.code and other_share > share - TIE]
    seen = f"accuracy {float(right.double().mean()):.0%} as it is fed, {share:.0%} {' or '.join(equal)}"
    return [found(best.code, seen, int((~right).sum()), n)]


def _rightly(subject: Subject, other: Alternative, labels: Tensor, n: int) -> Tensor | None:
    """Which of the first n images are classified rightly when fed in another way; None where that fails."""
    try:
        logits = subject.logits(other.feed(subject.images[:n]), module=other.module)
    except Broken:
        return None
    return torch.as_tensor(logits.argmax(1) == labels[:n]) if bool(torch.isfinite(logits).all()) else None


def clearly_better(other: Tensor, right: Tensor, gain: float = GAIN) -> bool:
    """Whether the other answers are right more often, by some points and by McNemar's exact test."""
    won, lost = int((other & ~right).sum()), int((right & ~other).sum())
    return won - lost >= gain * len(right) and _at_least(won, won + lost, 0.5) < SURE


def labelling(prediction: Tensor, labels: Tensor, classes: int) -> list[Finding]:
    """Labels in another order than the model's: shifted by one, or permuted.

    A permutation is fitted on every second image and judged on the others, so that it cannot win by chance.
    """
    right = prediction == labels
    n = len(labels)
    if n < FEWEST_FOR_ORDER or float(right.double().mean()) > 0.8:
        return []
    accuracy = float(right.double().mean())
    for shift in (1, -1):
        shifted = prediction + shift == labels
        if clearly_better(shifted, right, gain=0.2):
            seen = (
                f"accuracy {accuracy:.0%}, but {float(shifted.double().mean()):.0%} with {shift:+d} on every prediction"
            )
            return [found("labels-order", seen, int((~right).sum()), n)]
    order = _best_order(prediction[::2], labels[::2], classes)
    mapped = order[prediction[1::2]] == labels[1::2]
    if clearly_better(mapped, right[1::2], gain=0.2):
        share = float(mapped.double().mean())
        seen = f"accuracy {accuracy:.0%}, but {share:.0%} on held-out images after a permutation of the classes"
        return [found("labels-order", seen, int((~right).sum()), n)]
    return []


def _best_order(prediction: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The permutation of the classes under which most predictions are right."""
    from scipy.optimize import linear_sum_assignment

    counts = torch.bincount(prediction * classes + labels, minlength=classes * classes).view(classes, classes).double()
    counts += 0.5 * torch.eye(classes, device=counts.device)  # a class that was not seen stays itself
    _, columns = linear_sum_assignment(counts.cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, device=labels.device)


def claim(right: Tensor, classes: int, expect: float | None) -> list[Finding]:
    """Accuracy at chance, or significantly under what was claimed."""
    n, hits = len(right), int(right.sum())
    if n >= FEWEST and classes > 1 and _at_least(hits, n, 1 / classes) > 0.05:
        seen = f"accuracy {hits / n:.1%}, and guessing among {classes} classes gives {1 / classes:.1%}"
        return [found("accuracy-at-chance", seen, n - hits, n)]
    if expect is not None and hits < n * expect and _at_least(n - hits, n, 1 - expect) < 0.01:
        seen = f"accuracy {hits / n:.1%} where {expect:.1%} was claimed"
        return [found("accuracy-below-expected", seen, n - hits, n)]
    return []


def _at_least(hits: int, n: int, chance: float) -> float:
    """The probability of at least so many hits in n tries."""
    from scipy.stats import binom

    return float(binom.sf(hits - 1, n, chance)) if n else 1.0
