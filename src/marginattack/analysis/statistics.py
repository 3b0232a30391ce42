"""How sure a number is: intervals for shares and medians, and tests for pairs."""

from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


def share(hits: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's interval for a share of n samples."""
    from scipy.special import ndtri

    if n == 0:
        return 0.0, 1.0
    z, p = float(ndtri((1 + confidence) / 2)), hits / n
    m = 1 + z * z / n
    centre, half = (p + z * z / 2 / n) / m, z * np.sqrt(p * (1 - p) / n + z * z / 4 / n / n) / m
    return max(float(centre - half), 0.0), min(float(centre + half), 1.0)


def median(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval for the median from order statistics: it assumes no distribution, and infinite values are welcome.

    Fewer than six values admit none at 95 %: NaN.
    """
    from scipy.special import bdtr, bdtrik

    n = len(values)
    if n == 0 or 0.5 ** (n - 1) > 1 - confidence:
        return float("nan"), float("nan")
    ordered = np.sort(values)
    tail = (1 - confidence) / 2
    rank = int(np.ceil(bdtrik(tail, n, 0.5)))
    rank -= int(rank > 0 and bdtr(rank - 1, n, 0.5) >= tail)
    return float(ordered[max(rank - 1, 0)]), float(ordered[min(n - rank, n - 1)])


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """What sets two results on the same samples apart: b minus a, sample by sample."""

    n: int
    smaller: int  # samples on which b is smaller
    larger: int
    ties: int
    median_a: float
    median_b: float
    median_ratio: float  # of b/a over the samples that both found, at more than 0
    ratio_low: float
    ratio_high: float
    p: float  # that differences this lopsided arise by chance: Wilcoxon's signed-rank test


def paired(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-6) -> Pairs:
    """Compare two columns of distances, row by row; infinite: not found, and so larger than any that was.

    Differences within ``tolerance`` of the distance are ties. The test is on the order of the differences; one between
    found and not found counts as the largest of all.
    """
    from scipy.stats import wilcoxon

    same = np.isclose(a, b, rtol=tolerance, atol=0) | (np.isinf(a) & np.isinf(b))
    both = np.isfinite(a) & np.isfinite(b)
    difference = np.zeros(len(a))
    difference[both] = b[both] - a[both]
    largest = np.abs(difference).max(initial=0.0) + 1.0
    difference = np.where(both, difference, np.where(np.isinf(b), largest, -largest))
    difference = np.where(same, 0.0, difference)
    moved = difference[difference != 0]
    usable = both & (a > 0) & (b > 0)
    ratio = b[usable] / a[usable]
    low, high = median(ratio)
    return Pairs(
        n=len(a), smaller=int((difference < 0).sum()), larger=int((difference > 0).sum()), ties=int(same.sum()),
        median_a=float(np.median(a)) if len(a) else float("nan"),
        median_b=float(np.median(b)) if len(b) else float("nan"),
        median_ratio=float(np.median(ratio)) if len(ratio) else float("nan"), ratio_low=low, ratio_high=high,
        p=float(wilcoxon(moved).pvalue) if len(moved) else 1.0,
    )  # fmt: skip
