"""Consistency: whether the logits of an input are the same in every forward and in every batch, up to rounding."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from marginattack.core.calibration import MOST_BATCH_NOISE
from marginattack.core.types import Logits
from marginattack.errors import InputError, one_line

CHECKED = 32  # inputs
ALONE, FEW = 4, 5  # inputs also evaluated one by one; the size of small batches
REPEATS = 4  # forwards of one batch
ROUNDING = 64  # units of rounding of the largest logit by which two forwards of one batch may differ
MOST_ROUNDING = 0.1  # of the largest logit, in any precision


class Inconsistency(NamedTuple):
    """How a model's logits change, and for how many inputs; ``code`` is that of a diagnosis finding."""

    code: str
    affected: int
    tried: int
    seen: str


def most_batch_noise(rounding_unit: float) -> float:
    """How much of the largest logit a batch may change a logit: the rounding of low precision, or batch noise."""
    return max(MOST_BATCH_NOISE, min(ROUNDING * rounding_unit, MOST_ROUNDING))


def find_inconsistency(
    model: Callable[[Tensor], Logits], x: Tensor, rounding_unit: float, *, repeats: int = REPEATS
) -> Inconsistency | None:
    """Compare forwards of one batch, and forwards of batches of other sizes, orders and compositions."""
    logits = model(x).double()
    again = [model(x).double() - logits for _ in range(repeats - 1)]
    limit = min(ROUNDING * rounding_unit, MOST_ROUNDING)
    if found := describe_change("random", "between forwards", again, logits, limit):
        return found
    small = [part for part in (*x[:ALONE].split(1), *x[ALONE:].split(FEW)) if len(part)]
    try:
        in_small = torch.cat([model(part) for part in small])
    except Exception as error:  # a model may raise anything
        return Inconsistency(
            "batch-dependent", len(x), len(x), f"a batch of one input or {FEW} fails ({one_line(error)})"
        )
    neighbour = x[:1].flip(-1)  # so that even a single input is part of a batch
    in_larger = model(torch.cat([x.flip(0), neighbour]))[:-1].flip(0)
    change = [each.double() - logits for each in (in_small, in_larger)]
    return describe_change("batch-dependent", "between batches", change, logits, most_batch_noise(rounding_unit))


def describe_change(code: str, where: str, change: list[Tensor], logits: Tensor, limit: float) -> Inconsistency | None:
    """Describe changes of logits larger than ``limit`` times the largest logit; None if there are none."""
    scale = float(logits.nan_to_num(0, 0, 0).abs().max()) or 1.0
    size = torch.stack(change).nan_to_num(0, 0, 0).abs().amax((0, 2)) / scale
    affected = int((size > limit).sum())
    if not affected:
        return None
    seen = f"the logits of one input differ {where}, by up to {float(size.max()):.2g} of the largest"
    return Inconsistency(code, affected, len(size), seen)


def require_consistent(found: Inconsistency | None) -> None:
    """Raise InputError for a model whose logits do not depend on each input alone."""
    if found is None:
        return
    hint = "let no input change the logits of another, as BatchNorm does without running statistics"
    if found.code == "random":
        hint = "disable its dropout and noise, or measure it with randomized=True"
    raise InputError(f"model is {found.code}: {found.seen}, for {found.affected} of {found.tried} inputs; {hint}")
