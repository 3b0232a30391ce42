r"""Comparison of attacks on equal terms: the same samples, the same budget, the same pool of best known distances.

Local optimality is AttackBench's (Cinà et al. 2025): with :math:`A` the area under robust accuracy against distance up
to :math:`d_{max}`, the largest of the best known distances,

.. math:: 1 - \frac{A - A_{best}}{accuracy \cdot d_{max} - A_{best}}.

Robust accuracy is a step function, so its area is exact: :math:`accuracy \cdot mean(\min(d, d_{max}))`. A miss counts
as :math:`d_{max}`, and no distance counts as more; the mean excess :math:`d / d_{best} - 1` is truncated in the
same way. Samples without any known adversarial point have no excess.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.attacks import ATTACKS, LBFGS, Attack, CarliniWagner, Search
from marginattack.attacks.external.base import ExternalAttack, ProblemInfo
from marginattack.attacks.naming import named_attack
from marginattack.attacks.presets import PRESETS, preset
from marginattack.attacks.search import MARGIN_PGD
from marginattack.core.incumbent import GRID
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session

STRIDE = 5  # every fifth point of the history's grid: each is 1.28 times the previous one

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One attack with one budget on all samples."""

    attack: str  # its repr, with the settings
    budget: int
    distance: Numbers  # (n,), infinity: not found
    curve: Numbers  # (n, len(grid(budget))), the best distance within that many passes
    forwards: NDArray[np.int64]
    backwards: NDArray[np.int64]
    rejected: int  # points that failed verification
    seconds: float


def grid(budget: int) -> NDArray[np.int64]:
    """Numbers of passes at which the curves of a trial are sampled."""
    passes = GRID[::STRIDE].double().numpy()
    return np.unique(np.floor(passes[passes <= budget]).astype(np.int64))


def run_trial(
    session: Session, samples: Batch, norm: Norm, attack: Attack, *, budget: int, seed: int = 0, batch: int = 500,
    guard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Trial:  # fmt: skip
    """Run an attack on correctly classified, validated samples and verify its points.

    ``guard`` is a context manager around the attack on each batch, which may end it by raising ``BudgetExhausted``.
    """
    info: list[ProblemInfo] = []

    def guarded_attack(problem: Problem) -> None:
        info.append(ProblemInfo.of(problem, budget))
        with guard():
            attack(problem)

    began = time.perf_counter()
    slots = torch.searchsorted(GRID.double(), torch.from_numpy(grid(budget)).double(), right=True) - 1
    parts = [
        session.solve(samples.select(slice(first, first + batch)), norm, guarded_attack, budget=budget, seed=seed)
        for first in range(0, len(samples), batch)
    ]
    success = torch.cat([part.success for part in parts])
    curve = torch.cat([part.history.curve[:, slots] for part in parts]).double()
    return Trial(
        attack=attack.describe(info[0]) if isinstance(attack, ExternalAttack) else repr(attack), budget=budget,
        distance=torch.cat([part.distance for part in parts]).numpy(),
        curve=torch.where(success[:, None], curve, torch.inf).numpy(),
        forwards=torch.cat([part.forwards for part in parts]).numpy(),
        backwards=torch.cat([part.backwards for part in parts]).numpy(),
        rejected=int(torch.cat([part.rejected for part in parts]).sum()), seconds=time.perf_counter() - began,
    )  # fmt: skip


def best_distances(trials: Sequence[Trial]) -> Numbers:
    """The smallest distance of each sample over all trials."""
    best: Numbers = np.min([trial.distance for trial in trials], axis=0)
    return best


def max_distance(best: Numbers) -> float:
    """d_max: the largest finite best distance."""
    return float(best[np.isfinite(best)].max(initial=0.0))


def robust_accuracy_area(distance: Numbers, d_max: float, accuracy: float = 1.0) -> float:
    """The area under robust accuracy against distance, from 0 to d_max."""
    return accuracy * float(np.minimum(distance, d_max).mean())


def local_optimality(distance: Numbers, best: Numbers, accuracy: float = 1.0) -> float:
    """1 if the attack found the best distance of every sample, 0 if it found nothing."""
    d_max = max_distance(best)
    least = robust_accuracy_area(best, d_max, accuracy)
    room = accuracy * d_max - least
    lost = robust_accuracy_area(distance, d_max, accuracy) - least
    return 1.0 - lost / room if room > 0 else float(lost <= 0)


def mean_excess(distance: Numbers, best: Numbers) -> float:
    """The mean of d / d_best − 1 over the samples with a known adversarial point; d is truncated at d_max."""
    known = np.isfinite(best) & (best > 0)
    if not known.any():
        return float("nan")
    return float((np.minimum(distance, max_distance(best))[known] / best[known] - 1).mean())


def summary(trial: Trial, best: Numbers) -> dict[str, Any]:
    """The measures of a trial against the best distances."""
    known = np.isfinite(best)
    return {
        "optimality": local_optimality(trial.distance, best),
        "excess": mean_excess(trial.distance, best),
        "median": float(np.median(trial.distance)),
        "mean": float(np.minimum(trial.distance, max_distance(best)).mean()),
        "success": float(np.isfinite(trial.distance).mean()),
        "best": float((trial.distance <= 1.001 * best)[known].mean()) if known.any() else 0.0,
        "forwards": float(trial.forwards.mean()),
        "backwards": float(trial.backwards.mean()),
        "most": int((trial.forwards + trial.backwards).max()),
        "rejected": trial.rejected,
        "seconds": trial.seconds,
    }


def anytime(trial: Trial, best: Numbers) -> dict[str, list[float]]:
    """The mean excess and the median distance at each number of passes of the grid."""
    return {
        "excess": [mean_excess(column, best) for column in trial.curve.T],
        "median": [float(np.median(column)) for column in trial.curve.T],
    }


def _search(budget: int) -> Attack:
    levels = max(2, int(budget**0.36))
    return Search(attack=replace(MARGIN_PGD, steps=max(2, budget // (2 * (levels + 1)))), levels=levels)


def _cw(budget: int) -> Attack:
    searches, initial = (9, 1e-3) if budget >= 1000 else (2 if budget >= 300 else 1, 1.0)
    steps = max(1, budget // (2 * searches))
    return CarliniWagner(searches=searches, steps=steps, initial=initial, rate=10 / max(50, steps))


# Our own attacks whose number of steps is a setting, chosen to use the budget. The others adapt to it.
SIZED_BY_BUDGET: Mapping[str, Callable[[int], Attack]] = {
    "search": _search,
    "cw": _cw,
    "lbfgs": lambda budget: LBFGS(steps=max(4, budget // 36)),
}


def minimum_norm_attacks(norm: str) -> list[str]:
    """Our own attacks that minimise this norm, as opposed to those within a fixed radius."""
    return [name for name, kind in ATTACKS.items() if norm in kind.norms and not hasattr(kind, "eps")]


def attack_by_name(name: str, budget: int) -> Attack:
    """One of our attacks, ``preset:NAME`` for the paper's settings, or an external attack such as ``advlib:ddn``.

    Attacks within a radius take it after an @: ``square@0.3``.
    """
    if name in SIZED_BY_BUDGET:
        return SIZED_BY_BUDGET[name](budget)
    prefix, _, rest = name.partition(":")
    if prefix == "preset" and rest in PRESETS:
        settings = preset(rest)
        starts = max(1, min(settings.restarts, budget // 400))  # at least 400 passes per start
        return replace(settings, restarts=starts, radius=settings.radius if starts > 1 else 0.0)
    return named_attack(name, also=[f"preset:{key}" for key in PRESETS])


COLUMNS = ("attack", "budget", "optimality", "excess", "median", "mean", "success", "passes", "seconds")
LEGEND = (
    "excess: mean excess over the best distance found by any attack here; not found counts as the largest of those. "
    "optimality: AttackBench's local optimality; 1 is best."
)


def table(trials: Mapping[str, Sequence[Trial]]) -> list[tuple[str, ...]]:
    """Cells under COLUMNS, sorted by budget and excess; best distances are over all given trials."""
    best = best_distances([trial for each in trials.values() for trial in each])
    rows = [(trial.budget, name, summary(trial, best)) for name, each in trials.items() for trial in each]
    rows.sort(key=lambda row: (row[0], row[2]["excess"]))
    return [
        (
            name, str(budget), f"{s['optimality']:.4f}", f"{s['excess']:.2%}", f"{s['median']:.4g}",
            f"{s['mean']:.4g}" if s["success"] == 1 else "–",
            f"{s['success']:.1%}", f"{s['forwards'] + s['backwards']:.0f}", f"{s['seconds']:.1f}",
        )
        for budget, name, s in rows
    ]  # fmt: skip


def first_correct(
    session: Session, read: Callable[[Sequence[int]], tuple[Tensor, Tensor]], total: int, wanted: int
) -> tuple[Tensor, Tensor]:
    """The first ``wanted`` samples that are classified correctly, or all of them if there are fewer."""
    images, labels = list[Tensor](), list[Tensor]()
    for first in range(0, total, 256):
        x, y = read(range(first, min(first + 256, total)))
        correct = session.predict(x) == y
        images.append(x[correct])
        labels.append(y[correct])
        if sum(map(len, labels)) >= wanted:
            break
    if not any(map(len, labels)):
        raise InputError(f"the model classifies none of {total} samples correctly: check the order of its classes")
    return torch.cat(images)[:wanted], torch.cat(labels)[:wanted]
