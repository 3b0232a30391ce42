"""Engines: where the shards of a run are computed. Shards and their files are the same for all engines.

An engine is called with the run and returns a context manager that yields a ``Pool``, which computes the shards.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from marginattack.execution.session import Session
from marginattack.runs.job import Job
from marginattack.storage.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class FailedShard:
    """A shard that failed at every attempt, and why."""

    shard: int
    attack: str
    norm: str
    error: str
    ids: list[int]  # of its samples
    hangs: int = 0  # consecutive sessions in which it hung


@runtime_checkable
class Pool(Protocol):
    """The processes that compute the shards. ``progress`` is called with the number of samples done."""

    def choose_batch(self) -> int:
        """Return the batch size of the settings, or one that fits into memory."""

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        """Compute and commit the pending shards; return those that failed."""

    def bound(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        """Compute or refine the bounds of finished shards and commit them; return the shards that failed."""

    def verify(self, progress: Callable[[int], None]) -> dict[str, int]:
        """Check every stored row on the plain model; return the number of ``rows`` and of ``failed`` ones."""

    def about(self) -> dict[str, Any]:
        """Return what the manifest records about this session after it has measured."""


Engine: TypeAlias = Callable[[Job, RunFolder, Session], AbstractContextManager[Pool]]
