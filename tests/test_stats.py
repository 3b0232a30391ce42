"""Intervals cover what they should, and tests of pairs see what is there."""

import numpy as np
import pytest

from marginattack.analysis import statistics as stats

RANDOM = np.random.default_rng(0)


def test_a_share_is_covered_as_often_as_stated() -> None:
    hits = RANDOM.binomial(50, 0.3, 400)
    covered = np.mean([low <= 0.3 <= high for low, high in (stats.share(int(h), 50) for h in hits)])
    assert 0.92 <= covered <= 0.985
    assert stats.share(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("n", [6, 20, 101])
def test_a_median_is_covered_at_least_as_often_as_stated(n: int) -> None:
    intervals = [stats.median(RANDOM.exponential(size=n)) for _ in range(600)]
    covered = np.mean([low <= np.log(2) <= high for low, high in intervals])
    assert covered >= 0.92
    if n == 101:
        assert covered <= 0.985


def test_infinite_values_have_their_place_in_a_median() -> None:
    low, high = stats.median(np.array([1.0, 2.0, 3.0] * 5 + [np.inf] * 14))
    assert (low, high) == (2.0, np.inf)


def test_pairs_that_differ_are_told_from_pairs_that_do_not() -> None:
    a = RANDOM.lognormal(size=200)
    smaller = stats.paired(a, 0.9 * a)
    assert (smaller.smaller, smaller.larger, smaller.ties) == (200, 0, 0)
    assert smaller.median_ratio == pytest.approx(0.9)
    assert smaller.p < 1e-10
    same = stats.paired(a, a * (1 + 1e-9))
    assert (same.ties, same.p) == (200, 1.0)
    noise = stats.paired(a, a * RANDOM.lognormal(sigma=0.1, size=200))
    assert noise.p > 0.01
    assert noise.ratio_low < 1 < noise.ratio_high


def test_what_only_one_side_found_counts_as_larger_on_the_other() -> None:
    a, b = np.array([1.0, np.inf, 2.0, np.inf, 0.0]), np.array([np.inf, 1.0, np.inf, np.inf, 0.0])
    pairs = stats.paired(a, b)
    assert (pairs.smaller, pairs.larger, pairs.ties, pairs.n) == (1, 2, 2, 5)


def test_five_values_admit_no_interval() -> None:
    assert np.isnan(stats.median(np.arange(5.0))).all()


def test_ratios_of_swapped_columns_are_inverse() -> None:
    a, b = np.array([0.0, 0.1, 0.2, 0.4]), np.array([0.1, 0.0, 0.1, 0.2])
    assert stats.paired(a, b).median_ratio == pytest.approx(0.5)
    assert stats.paired(b, a).median_ratio == pytest.approx(2.0)
