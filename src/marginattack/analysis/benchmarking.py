r"""Attacks compared on even terms: the same samples, the same counted passes, and what the best of all of them found.

Local optimality is AttackBench's (Cinà et al. 2025): with :math:`A` the area under robust accuracy against distance up
to :math:`d_{max}`, the largest of the pooled best distances,

.. math:: 1 - \frac{A - A_{best}}{accuracy \cdot d_{max} - A_{best}}.

Robust accuracy is a staircase, and its area is exact here: :math:`accuracy \cdot mean(\min(d, d_{max}))`. So a miss
counts as :math:`d_{max}`, and no distance counts as more; the mean excess :math:`d / d_{best} - 1` is cut in the same
way. Samples that nothing ever found an adversarial point for have no excess.
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
from marginattack.attacks.presets import PRESETS, preset
from marginattack.attacks.search import WITHIN
from marginattack.core.classifier import Classifier
from marginattack.core.history import GRID
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.errors import InputError

STRIDE = 5  # every fifth point of the anytime grid: from one to the next a factor of 1.28

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One attack with one budget on all samples."""

    attack: str  # its repr, with the settings
    budget: int
    distance: Numbers  # (n,), infinity: not found
    curve: Numbers  # (n, len(grid(budget))), the best distance within so many passes
    forwards: NDArray[np.int64]
    backwards: NDArray[np.int64]
    rejected: int  # points that the bare model did not confirm
    seconds: float


def grid(budget: int) -> NDArray[np.int64]:
    """The passes at which anytime curves are kept."""
    passes = GRID[::STRIDE].double().numpy()
    return np.unique(np.floor(passes[passes <= budget]).astype(np.int64))


def trial(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    norm: Norm,
    attack: Attack,
    *,
    budget: int,
    seed: int = 0,
    batch: int = 500,
    guard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Trial:
    """Run an attack on samples that are classified rightly; call it while the classifier is held and has accepted them.

    Each adversarial point is checked again on the bare model in other batches, as ``measure`` does. ``guard`` is
    entered around the attack, batch by batch: it may end it by raising ``Finished``.
    """

    def guarded(problem: Problem) -> None:
        with guard():
            attack(problem)

    found, curves, forwards, backwards = [], [], [], []
    began = time.perf_counter()
    places = torch.searchsorted(GRID.double(), torch.from_numpy(grid(budget)).double(), right=True) - 1
    for first in range(0, len(images), batch):
        rows = slice(first, first + batch)
        ids = range(first, min(first + batch, len(images)))
        classifier.meet(images[rows], classifier.answers(images[rows]))
        problem = Problem(classifier, images[rows], labels[rows], norm, budget=budget, seed=seed, ids=ids)
        problem.solve(guarded)
        found.append(problem.best.unflatten(1, images.shape[1:]).cpu())
        curves.append(problem.anytime.curve[:, places])
        forwards.append(problem.forwards)
        backwards.append(problem.backwards)
    seconds = time.perf_counter() - began
    adversarial, curve = torch.cat(found), torch.cat(curves).double()
    moved = (adversarial != images).flatten(1).any(1)
    holds = (classifier.recheck(adversarial, images) != labels) & moved
    distance = norm.size((adversarial.double() - images.double()).flatten(1))[:, 0]
    return Trial(
        attack=described(attack, problem, budget),
        budget=budget,
        distance=torch.where(holds, distance, torch.inf).numpy(),
        curve=torch.where(holds[:, None], curve, torch.inf).numpy(),
        forwards=torch.cat(forwards).numpy(),
        backwards=torch.cat(backwards).numpy(),
        rejected=int((moved & ~holds).sum()),
        seconds=seconds,
    )


def described(attack: Attack, problem: Problem, budget: int) -> str:
    """The attack with its settings; of a peer, those for this problem."""
    from marginattack.integrations.peer import Peer, plan_of

    if not isinstance(attack, Peer):
        return repr(attack)
    settings = ", ".join(f"{key}={value}" for key, value in attack.settings(plan_of(problem, budget)).items())
    return f"{attack.library.distribution}: {attack.entry.call}({settings})"


def pooled(trials: Sequence[Trial]) -> Numbers:
    """The best distance of each sample over everything that was run."""
    best: Numbers = np.min([trial.distance for trial in trials], axis=0)
    return best


def furthest(best: Numbers) -> float:
    """d_max: the largest of the pooled best distances."""
    return float(best[np.isfinite(best)].max(initial=0.0))


def area(distance: Numbers, d_max: float, accuracy: float = 1.0) -> float:
    """The area under robust accuracy against distance, from 0 to d_max."""
    return accuracy * float(np.minimum(distance, d_max).mean())


def local_optimality(distance: Numbers, best: Numbers, accuracy: float = 1.0) -> float:
    """1 where the attack found the pooled best of every sample, 0 where it found nothing."""
    d_max = furthest(best)
    least = area(best, d_max, accuracy)
    room = accuracy * d_max - least
    lost = area(distance, d_max, accuracy) - least
    return 1.0 - lost / room if room > 0 else float(lost <= 0)


def mean_excess(distance: Numbers, best: Numbers) -> float:
    """The mean of d / d_best − 1 over the samples that anything was found for; d is cut at d_max."""
    known = np.isfinite(best) & (best > 0)
    if not known.any():
        return float("nan")
    return float((np.minimum(distance, furthest(best))[known] / best[known] - 1).mean())


def summary(trial: Trial, best: Numbers) -> dict[str, Any]:
    """A trial in numbers, beside the pooled best."""
    found = np.isfinite(trial.distance)
    d_max = furthest(best)
    return {
        "optimality": local_optimality(trial.distance, best),
        "excess": mean_excess(trial.distance, best),
        "median": float(np.median(trial.distance)),
        "mean": float(np.minimum(trial.distance, d_max).mean()),
        "success": float(found.mean()),
        "best": float((trial.distance <= 1.001 * best)[np.isfinite(best)].mean()) if np.isfinite(best).any() else 0.0,
        "forwards": float(trial.forwards.mean()),
        "backwards": float(trial.backwards.mean()),
        "most": int((trial.forwards + trial.backwards).max()),
        "rejected": trial.rejected,
        "seconds": trial.seconds,
    }


def anytime(trial: Trial, best: Numbers) -> dict[str, list[float]]:
    """The mean excess and the median distance within each number of passes of the grid."""
    return {
        "excess": [mean_excess(column, best) for column in trial.curve.T],
        "median": [float(np.median(column)) for column in trial.curve.T],
    }


def _search(budget: int) -> Attack:
    levels = max(2, int(budget**0.36))
    return Search(attack=replace(WITHIN, steps=max(2, budget // (2 * (levels + 1)))), levels=levels)


def _cw(budget: int) -> Attack:
    searches, initial = (9, 1e-3) if budget >= 1000 else (2 if budget >= 300 else 1, 1.0)
    steps = max(1, budget // (2 * searches))
    return CarliniWagner(searches=searches, steps=steps, initial=initial, rate=10 / max(50, steps))


# Of our own attacks those whose length is a setting: chosen so that the budget is used. The others adapt by themselves.
SUITED: Mapping[str, Callable[[int], Attack]] = {
    "search": _search,
    "cw": _cw,
    "lbfgs": lambda budget: LBFGS(steps=max(4, budget // 36)),
}


def zero_confidence(norm: str) -> list[str]:
    """Our own attacks that look for the nearest point under this norm, not within a radius."""
    return [name for name, kind in ATTACKS.items() if norm in kind.norms and not hasattr(kind, "eps")]


def contender(name: str, budget: int) -> Attack:
    """An attack by its name: one of ours, ``preset:NAME`` for the paper's, or a peer as ``advlib:ddn``."""
    if name in SUITED:
        return SUITED[name](budget)
    if name in ATTACKS:
        return ATTACKS[name]()
    prefix, _, rest = name.partition(":")
    if prefix == "preset" and rest in PRESETS:
        settings = preset(rest)
        starts = max(1, min(settings.restarts, budget // 400))  # a start is worth at least 400 passes
        return replace(settings, restarts=starts, radius=settings.radius if starts > 1 else 0.0)
    from marginattack.integrations import PEERS, peer

    if name in PEERS:
        return peer(name)
    known = [*ATTACKS, *(f"preset:{key}" for key in PRESETS), *PEERS]
    raise InputError(f"no attack named {name!r}: choose one of {', '.join(known)}")


COLUMNS = ("attack", "budget", "optimality", "excess", "median", "mean", "success", "passes", "seconds")


def table(trials: Mapping[str, Sequence[Trial]]) -> list[tuple[str, ...]]:
    """Rows of text under COLUMNS, the least excess first within each budget; the pool is everything given."""
    best = pooled([trial for each in trials.values() for trial in each])
    rows = [(trial.budget, name, summary(trial, best)) for name, each in trials.items() for trial in each]
    rows.sort(key=lambda row: (row[0], row[2]["excess"]))
    return [
        (
            name, str(budget), f"{s['optimality']:.4f}", f"{s['excess']:.2%}", f"{s['median']:.4g}", f"{s['mean']:.4g}",
            f"{s['success']:.1%}", f"{s['forwards'] + s['backwards']:.0f}", f"{s['seconds']:.1f}",
        )
        for budget, name, s in rows
    ]  # fmt: skip


def first_right(
    classifier: Classifier, read: Callable[[Sequence[int]], tuple[Tensor, Tensor]], total: int, wanted: int
) -> tuple[Tensor, Tensor]:
    """The first samples that are classified rightly, at most as many as wanted."""
    kept: list[tuple[Tensor, Tensor]] = []
    have = 0
    for first in range(0, total, 256):
        images, labels = read(range(first, min(first + 256, total)))
        right = classifier.predict(images) == labels
        kept.append((images[right], labels[right]))
        have += int(right.sum())
        if have >= wanted:
            break
    if have == 0:
        raise InputError(f"the model classifies none of {total} samples rightly: are the labels those of its classes?")
    images, labels = (torch.cat([pair[i] for pair in kept])[:wanted] for i in range(2))
    return images, labels
