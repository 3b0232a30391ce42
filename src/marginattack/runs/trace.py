"""Traces: every query of an attack on a few samples, for plots of its convergence."""

from typing import Any

import torch
from torch import Tensor

from marginattack.attacks import Attack
from marginattack.core.norms import Norm
from marginattack.core.problem import Observation, Observer
from marginattack.core.validation import Batch
from marginattack.execution.session import Session


class Tracer(Observer):
    """Keeps one row per query and sample: its number, passes spent, distance, constraint, and the move before it."""

    def __init__(self, ids: Tensor) -> None:
        self.rows: dict[str, list[Any]] = {
            name: [] for name in ("id", "query", "passes", "distance", "c", "move", "best")
        }
        self.ids, self.queries, self.move = ids, torch.zeros(len(ids), dtype=torch.int64), ""

    def mark(self, move: str) -> None:
        self.move = move

    def record(self, query: Observation) -> None:
        history, rows, here = query.history, query.rows, query.rows.cpu()
        self.rows["passes"] += history.passes[rows].tolist()
        self.rows["best"] += history.distance[rows].tolist()
        self.rows["id"] += self.ids[here].tolist()
        self.rows["query"] += self.queries[here].tolist()
        self.rows["distance"] += query.distance[:, 0].tolist()
        self.rows["c"] += query.c[:, 0].tolist()
        self.rows["move"] += [self.move] * len(here)
        self.queries[here] += 1


def trace(
    session: Session, batch: Batch, norm: Norm, attack: Attack, *, budget: int | None = None, seed: int = 0
) -> dict[str, list[Any]]:
    """Run an attack on a validated batch and return one row per query and sample."""
    tracer = Tracer(batch.ids)
    session.seed_draws(seed, batch.ids)
    session.problem(batch, norm, budget=budget, seed=seed, observer=tracer).solve(attack)
    if session.randomized is not None:  # the problem counts all draws of a pass as one
        tracer.rows["passes"] = [session.randomized.eot * passes for passes in tracer.rows["passes"]]
    return tracer.rows
