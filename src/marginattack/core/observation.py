"""Observer: receives every query of a problem."""

from typing import NamedTuple

from torch import Tensor

from marginattack.core.incumbent import History
from marginattack.core.types import Points, Scalars


class Observation(NamedTuple):
    """A query as an observer sees it: rows of the batch, points, their distance, the constraint there, the history."""

    rows: Tensor
    points: Points
    distance: Scalars
    c: Scalars
    history: History


class Observer:
    """Receives every query; this one ignores them. While another one observes, nothing is captured as a graph."""

    def mark(self, move: str) -> None:
        """The next points to be queried come from this move."""

    def record(self, query: Observation) -> None:
        """Take note of a query that was answered."""
