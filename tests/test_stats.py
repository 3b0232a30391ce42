"""Coverage of the intervals, and paired comparisons."""

import numpy as np
import pytest

from marginattack.analysis import statistics as stats

RANDOM = np.random.default_rng(0)


def test_proportion_interval_has_its_nominal_coverage() -> None:
    hits = RANDOM.binomial(50, 0.3, 400)
    covered = np.mean([low <= 0.3 <= high for low, high in (stats.proportion_interval(int(h), 50) for h in hits)])
    assert 0.92 <= covered <= 0.985
    assert stats.proportion_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("n", [6, 20, 101])
def test_median_interval_has_at_least_its_nominal_coverage(n: int) -> None:
    intervals = [stats.median_interval(RANDOM.exponential(size=n)) for _ in range(600)]
    covered = np.mean([low <= np.log(2) <= high for low, high in intervals])
    assert covered >= 0.92
    if n == 101:
        assert covered <= 0.985


def test_median_interval_allows_infinite_values() -> None:
    low, high = stats.median_interval(np.array([1.0, 2.0, 3.0] * 5 + [np.inf] * 14))
    assert (low, high) == (2.0, np.inf)


def test_paired_comparison_detects_differences() -> None:
    a = RANDOM.lognormal(size=200)
    smaller = stats.compare_paired(a, 0.9 * a)
    assert (smaller.smaller, smaller.larger, smaller.ties) == (200, 0, 0)
    assert smaller.median_ratio == pytest.approx(0.9)
    assert smaller.p < 1e-10
    same = stats.compare_paired(a, a * (1 + 1e-9))
    assert (same.ties, same.p) == (200, 1.0)
    noise = stats.compare_paired(a, a * RANDOM.lognormal(sigma=0.1, size=200))
    assert noise.p > 0.01
    assert noise.ratio_low < 1 < noise.ratio_high


def test_not_found_counts_as_larger() -> None:
    a, b = np.array([1.0, np.inf, 2.0, np.inf, 0.0]), np.array([np.inf, 1.0, np.inf, np.inf, 0.0])
    pairs = stats.compare_paired(a, b)
    assert (pairs.smaller, pairs.larger, pairs.ties, pairs.n) == (1, 2, 2, 5)


def test_five_values_have_no_interval() -> None:
    assert np.isnan(stats.median_interval(np.arange(5.0))).all()


def test_swapping_the_columns_inverts_the_ratio() -> None:
    a, b = np.array([0.0, 0.1, 0.2, 0.4]), np.array([0.1, 0.0, 0.1, 0.2])
    assert stats.compare_paired(a, b).median_ratio == pytest.approx(0.5)
    assert stats.compare_paired(b, a).median_ratio == pytest.approx(2.0)
