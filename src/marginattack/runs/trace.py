"""Traces: every query of an attack on a few samples, for plots of its convergence."""

from typing import Any

import torch
from torch import Tensor

from marginattack.attacks import Attack
from marginattack.core.classifier import Classifier
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Labels, Points, Scalars


def trace(
    classifier: Classifier, x: Tensor, y: Labels, norm: Norm, attack: Attack, *,
    budget: int | None = None, targets: Labels | None = None, seed: int = 0, ids: Tensor,
) -> dict[str, list[Any]]:  # fmt: skip
    """One row per query and sample: its number, passes spent, distance, constraint, and the move that led there.

    The classifier must be held and the inputs accepted by it.
    """
    problem = Problem(classifier, x, y, norm, targets=targets, budget=budget, seed=seed, ids=ids)
    rows: dict[str, list[Any]] = {name: [] for name in ("id", "query", "passes", "distance", "c", "move", "best")}
    queries = torch.zeros(len(x), dtype=torch.int64)

    def watch(where: Tensor, points: Points, c: Scalars, move: str) -> None:
        size = norm.size(points - problem.x0[where])[:, 0]
        rows["passes"] += problem.anytime.passes[where].tolist()
        rows["best"] += problem.anytime.best[where].tolist()
        where = where.cpu()
        rows["id"] += ids[where].tolist()
        rows["query"] += queries[where].tolist()
        rows["distance"] += size.tolist()
        rows["c"] += c[:, 0].tolist()
        rows["move"] += [move] * len(where)
        queries[where] += 1

    problem.watch = watch
    problem.solve(attack)
    return rows
