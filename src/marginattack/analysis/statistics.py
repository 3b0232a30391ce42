"""Confidence intervals for proportions and medians, and a test for paired distances; all from scipy."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginattack.core.rounding import rounded_up

CONFIDENCE = 0.95


def proportion_interval(hits: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's score interval for a proportion of ``hits`` out of ``n``; (0, 1) if n is 0."""
    from scipy.stats import binomtest

    if n == 0:
        return 0.0, 1.0
    interval = binomtest(hits, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def median_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return a distribution-free interval for the median; NaN for too few values (at 95 %, fewer than six).

    Its ends are order statistics, so that infinite values are allowed.
    """
    from scipy.stats import quantile_test

    if len(values) == 0:
        return float("nan"), float("nan")
    interval: Any = quantile_test(values, p=0.5).confidence_interval(confidence)
    return float(interval.low), float(interval.high)


def median_or_nan(values: np.ndarray) -> float:
    """Return the median, or NaN if there are no values."""
    return float(np.median(values)) if len(values) else float("nan")


def lower_quantile(values: np.ndarray, q: float) -> float:
    """Return the smallest value with at least a share ``q`` of all values at or below it; NaN if there are none.

    Older versions of numpy return NaN from ``quantile`` next to infinite values.
    """
    return float(np.sort(values)[max(int(np.ceil(q * len(values))) - 1, 0)]) if len(values) else float("nan")


class RobustAccuracy(NamedTuple):
    """Robust accuracy at one distance, with its confidence interval."""

    hits: int  # samples that are correctly classified and have no known adversarial example within the distance
    accuracy: float
    low: float
    high: float


def robust_accuracy(margins: np.ndarray, total: int, eps: np.ndarray) -> list[RobustAccuracy]:
    """Return the share of ``total`` samples with a margin above each eps; samples without a margin count as failed.

    Margins and eps are in the unit of the pixels; margins above eps by no more than the rounding of float32 are not.
    """
    levels = np.array([*map(rounded_up, np.asarray(eps, float).tolist())])
    hits = (len(margins) - np.searchsorted(np.sort(margins), levels, side="right")).tolist()
    known = {k: RobustAccuracy(k, k / max(total, 1), *proportion_interval(k, total)) for k in set(hits)}
    return [known[k] for k in hits]


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Distances b compared with distances a of the same samples."""

    n: int
    smaller: int  # samples where b is smaller
    larger: int
    ties: int
    median_a: float
    median_b: float
    median_ratio: float  # of b / a, over samples where both are finite and positive
    ratio_low: float
    ratio_high: float
    p: float  # of Wilcoxon's signed-rank test


def compare_paired(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-6) -> PairedComparison:
    """Compare two arrays of distances sample by sample; infinite (not found) is larger than any finite distance.

    Differences within the relative ``tolerance`` are ties. For the signed-rank test, a difference between found and not
    found ranks above all others.
    """
    from scipy.stats import wilcoxon

    ties, finite = np.isclose(a, b, rtol=tolerance, atol=0), np.isfinite(a) & np.isfinite(b)
    difference = np.where(np.isinf(b), np.inf, -np.inf)
    difference[finite] = b[finite] - a[finite]
    difference[ties] = 0.0
    largest = np.abs(difference[finite]).max(initial=0.0) + 1.0
    changed = np.clip(difference[difference != 0], -largest, largest)
    positive = finite & (a > 0) & (b > 0)
    ratio = b[positive] / a[positive]
    low, high = median_interval(ratio)
    return PairedComparison(
        n=len(a), smaller=int((changed < 0).sum()), larger=int((changed > 0).sum()), ties=int(ties.sum()),
        median_a=median_or_nan(a), median_b=median_or_nan(b), median_ratio=median_or_nan(ratio),
        ratio_low=low, ratio_high=high, p=float(wilcoxon(changed).pvalue) if len(changed) else 1.0,
    )  # fmt: skip
