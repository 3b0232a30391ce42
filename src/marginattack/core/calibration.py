"""Decision tolerance: by how much one logit must exceed another for the comparison to hold in any batch.

Rounding depends on the order of sums inside the model, which depends on the composition of the batch. A point counts as
adversarial only if its logits differ by more than rounding and batch noise.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from marginattack.core.types import Logits

ROUNDING_UNITS = 8  # of the largest logit
BATCH_NOISE_FACTOR = 2  # times the largest observed change of a logit with the batch
MOST_BATCH_NOISE = 1e-3  # of the largest logit; larger changes are not rounding


@dataclass(frozen=True)
class Tolerance:
    """``relative`` times the size of the logits, and at least ``absolute``."""

    relative: float
    absolute: float

    def of(self, size: Tensor) -> Tensor:
        """The tolerance for logits of these sizes."""
        return (self.relative * size).clamp(min=self.absolute)

    @property
    def reversed(self) -> "Tolerance":
        """Its absolute part below zero: a point counts unless it is clear that it is not adversarial."""
        return Tolerance(-1.0, -self.absolute)


def tolerance_for(rounding_unit: float, batch_noise: float) -> Tolerance:
    """The tolerance of a model with this rounding unit and batch noise."""
    return Tolerance(ROUNDING_UNITS * rounding_unit, BATCH_NOISE_FACTOR * batch_noise)


def largest_change(change: Logits) -> float:
    """How much two logits of one input can move apart, given the changes of its logits."""
    change = change.nan_to_num(0.0)
    return float((change.amax(1) - change.amin(1)).max()) / 2


def batch_noise(change: float, logits: Logits) -> float:
    """Convert a change of logits to batch noise: capped, and rounded up so that similar batches share graphs."""
    return round_up(min(change, MOST_BATCH_NOISE * float(logits.abs().max())))


def round_up(value: float) -> float:
    """Round up to a power of √2."""
    return 2.0 ** (math.ceil(2 * math.log2(value)) / 2) if value > 0 else 0.0
