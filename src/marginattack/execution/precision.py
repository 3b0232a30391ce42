"""The fastest precision of a search that does not make margins longer, chosen by trying it on a few inputs."""

import time
from collections.abc import Callable

import torch

from marginattack.core.classifier import PRECISIONS
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Scalars
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session

TRIED, WORTH_TRYING = 64, 512  # inputs that are tried; the number of inputs below which trying does not pay
MOST_LOSS = 1e-3  # mean relative increase of margins

Attack = Callable[[Problem], None]


def choose_precision(session: Session, batch: Batch, norm: Norm, attack: Attack, budget: int | None) -> str:
    """The precision whose search is fastest and loses less than a thousandth of a margin on the first inputs."""
    if session.classifier.device.type != "cuda" or len(batch) < WORTH_TRYING:
        return "float32"
    first = batch.select(slice(2 * TRIED))
    correct = first.select((session.predict(first.images) == first.labels).nonzero()[:TRIED, 0])
    tried = {
        precision: try_search(session.configure(search=precision), correct, norm, attack, budget)
        for precision in PRECISIONS
    }
    return fastest(tried)


def try_search(session: Session, batch: Batch, norm: Norm, attack: Attack, budget: int | None) -> tuple[float, Scalars]:
    """Seconds and distances; all infinite where the model cannot be run in that precision."""
    try:
        for _ in range(2):  # the first run captures
            began = time.perf_counter()
            solution = session.solve(batch, norm, attack, budget=budget)
            seconds = time.perf_counter() - began
        return seconds, solution.distance[:, None]
    except (RuntimeError, InputError):
        return torch.inf, torch.full((len(batch), 1), torch.inf)


def fastest(tried: dict[str, tuple[float, Scalars]]) -> str:
    """The fastest precision that loses next to nothing against float32."""
    full = tried["float32"][1]
    found = torch.isfinite(full)
    good = {
        precision: seconds
        for precision, (seconds, distance) in tried.items()
        if bool((torch.isfinite(distance) >= found).all()) and float((distance / full)[found].mean()) <= 1 + MOST_LOSS
    }
    return min(good, key=lambda precision: good[precision], default="float32")
