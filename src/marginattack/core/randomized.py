r"""Randomized: what adversarial means for a model with random logits, and how that is tested.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad P(\text{x is misclassified}) > rate, \; x \in [lo, hi]^d

A draw is one pass of the model. A stored point guarantees that a repetition with ``draws`` fresh draws finds it
misclassified in more than ``rate`` of them, with probability ``confidence`` or more. Half of the allowed error is that
of the repetition, which succeeds if the probability is at least ``needed_rate``. The other half is that of testing for
this: one binomial test per stage and candidate (Clopper and Pearson 1934), Bonferroni-corrected for all of them, since
the first candidate that passes is kept.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from marginattack.errors import InputError

# Multiples of the distance at which a point that is not confirmed is tried again; then, of the tangent plane's at x₀
OUTWARDS = (1.02, 1.04, 1.06, 1.08, 1.1, 1.13, 1.16, 1.2, 1.25, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0)
FROM_INPUT = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
STAGES = (0.1, 0.5, 2.0, 4.0)  # draws after which a test may end, in units of ``draws``: clear cases are cheap
TESTS = 2 + len(OUTWARDS) + len(FROM_INPUT)  # per sample, with those of the input and of the point found
SEARCH_ERROR = 0.1  # of a query's decision, so that the search rarely keeps points by chance
READ_BACK_ERROR = 1e-6  # per stored row that is checked again, so that long runs have no false alarms


class Stage(NamedTuple):
    """After this many draws a point with at least this many misclassifications is confirmed."""

    draws: int
    confirmed: int


@dataclass(frozen=True, kw_only=True)
class Randomized:
    """How a randomised model is measured: adversarial means misclassified with probability above ``rate``.

    Args:
        eot: Draws per query, over which logits and gradients are averaged (expectation over transformation). Each is a
            pass, and is counted.
        rate: The probability of misclassification above which a point is adversarial.
        confidence: The minimum probability that a stored point holds when it is tried again: that more than ``rate`` of
            ``draws`` fresh draws misclassify it.
        draws: Draws of such a repetition. With more draws points lie closer to the rate, and verification takes longer.

    Raises:
        InputError: A number is out of range, or there are too few draws for the rate.

    Example:
        >>> import torch, marginattack as ma
        >>> class Noisy(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x + 0.05 * torch.randn_like(x)
        >>> x, rule = torch.tensor([[0.9, 0.2]]), ma.Randomized(eot=4, rate=0.75)
        >>> margins = ma.measure(Noisy(), x, [0], "l2", budget=200, randomized=rule)
        >>> 0.49 < float(margins.distance) < 0.7, int(margins.forwards + margins.backwards) <= 200
        (True, True)
    """

    eot: int = 10
    rate: float = 0.5
    confidence: float = 0.99
    draws: int = 200

    def __post_init__(self) -> None:
        for name, least in (("eot", 1), ("draws", 20)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}: it must be at least {least}, as an integer")
        for name in ("rate", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: it must lie between 0 and 1")
        if self.stages[-1].confirmed > self.stages[-1].draws:
            raise InputError(f"rate is {self.rate}: {self.draws} draws are too few to test it; raise draws")

    @cached_property
    def needed_rate(self) -> float:
        """The probability of misclassification with which a repetition fails in half of the allowed error."""
        from scipy.stats import beta

        least = math.floor(self.rate * self.draws + 1e-9) + 1
        return float(beta.ppf(1 - (1 - self.confidence) / 2, least, self.draws - least + 1))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """When a point is confirmed: the lower Clopper-Pearson bound of its probability exceeds ``needed_rate``."""
        from scipy.stats import binom

        error = (1 - self.confidence) / 2 / (TESTS * len(STAGES))
        numbers = [round(share * self.draws) for share in STAGES]
        return tuple(Stage(n, int(binom.isf(error, n, self.needed_rate)) + 1) for n in numbers)

    @cached_property
    def crossed_draws(self) -> int:
        """How many of a query's draws must be misclassified for the search to count the point as adversarial."""
        from scipy.stats import binom

        return min(self.eot, int(binom.isf(SEARCH_ERROR, self.eot, self.rate)) + 1)

    @cached_property
    def contradicted(self) -> int:
        """A stored point with this few misclassifications in ``draws`` fresh draws is not adversarial."""
        from scipy.stats import binom

        return int(binom.ppf(READ_BACK_ERROR, self.draws, self.rate)) - 1

    def __str__(self) -> str:
        what = f"adversarial means misclassified with probability above {self.rate:g}"
        holds = f"a stored point holds on {self.draws} fresh draws with probability {self.confidence:g} or more"
        return f"{what}; {holds}; {self.eot} draws per query, each counted as a pass"


def as_randomized(randomized: bool | Randomized, eot: int | None = None) -> Randomized | None:
    """The settings of a randomised model, from a flag or as given; None for a deterministic one."""
    if isinstance(randomized, Randomized):
        if eot is not None:
            raise InputError(f"eot is given twice: write randomized=Randomized(eot={eot}, …) alone")
        return randomized
    if randomized:
        return Randomized() if eot is None else Randomized(eot=eot)
    if eot is not None:
        hint = "add randomized=True, or set both in the Classifier"
        raise InputError(f"eot is {eot}, but it applies to randomised models only: {hint}")
    return None
