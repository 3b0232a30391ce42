"""The statistics of randomised models against scipy's binomial interval."""

from typing import Any

import pytest
from scipy.stats import binom, binomtest

from marginattack import InputError, Randomized
from marginattack.core.randomized import FROM_INPUT, OUTWARDS, STAGES, TESTS, as_randomized

RULES = [Randomized(), Randomized(rate=0.9), Randomized(rate=0.29, draws=100, confidence=0.9)]


@pytest.mark.parametrize("rule", RULES)
def test_a_repetition_at_the_needed_rate_fails_in_half_of_the_allowed_error(rule: Randomized) -> None:
    fails = binom.cdf(round(rule.rate * rule.draws), rule.draws, rule.needed_rate)
    assert fails == pytest.approx((1 - rule.confidence) / 2)


@pytest.mark.parametrize("rule", RULES)
def test_a_point_is_confirmed_when_the_lower_bound_exceeds_the_needed_rate(rule: Randomized) -> None:
    assert len(OUTWARDS) + len(FROM_INPUT) + 2 == TESTS
    confidence = 1 - (1 - rule.confidence) / 2 / (TESTS * len(STAGES))
    for stage in rule.stages:
        for hits, expected in ((stage.confirmed, True), (stage.confirmed - 1, False)):
            if hits <= stage.draws:
                low = binomtest(hits, stage.draws, alternative="greater").proportion_ci(confidence).low
                assert (low > rule.needed_rate) == expected


@pytest.mark.parametrize("rule", RULES)
def test_a_point_at_the_rate_is_hardly_ever_contradicted(rule: Randomized) -> None:
    assert 1e-8 < binom.cdf(rule.contradicted, rule.draws, rule.rate) <= 1e-6


def test_a_search_counts_more_draws_as_adversarial_than_the_rate() -> None:
    assert [Randomized(eot=eot).crossed_draws for eot in (1, 4, 10, 20)] == [1, 4, 8, 14]
    assert Randomized(rate=0.9).crossed_draws == 10


BAD: dict[str, dict[str, Any]] = {
    "eot is 0: it must be at least 1": {"eot": 0},
    "draws is 10: it must be at least 20": {"draws": 10},
    "rate is 1.0: it must lie between 0 and 1": {"rate": 1.0},
    "confidence is 0.0: it must lie between 0 and 1": {"confidence": 0.0},
    "rate is 0.995: 200 draws are too few to test it; raise draws": {"rate": 0.995},
}


@pytest.mark.parametrize("message", BAD)
def test_numbers_out_of_range_are_refused(message: str) -> None:
    with pytest.raises(InputError, match=message):
        Randomized(**BAD[message])


def test_draws_belong_to_randomised_models() -> None:
    assert as_randomized(False) is None
    assert as_randomized(True, 7) == Randomized(eot=7)
    with pytest.raises(InputError, match=r"eot is 7, but .* randomised models only: add randomized=True"):
        as_randomized(False, 7)
    with pytest.raises(InputError, match="eot is given twice"):
        as_randomized(Randomized(), 7)
