"""Observer: receives every query of a problem."""

from typing import NamedTuple

from torch import Tensor

from marginattack.core.incumbent import History
from marginattack.core.types import Points, Scalars


class Observation(NamedTuple):
    """A query: rows of the batch, points, their distance, the constraint there, and the history."""

    rows: Tensor
    points: Points
    distance: Scalars
    c: Scalars
    history: History


class Observer:
    """Receives every query; the base class ignores them. Subclasses disable graph capture."""

    def mark(self, move: str) -> None:
        """The next points to be queried come from this move."""

    def record(self, query: Observation) -> None:
        """Record a query that was answered."""
