"""Engines: where the shards of a run are computed. What a shard is and how it is stored is the same for all.

An engine is called with the run and returns a context manager whose value is a ``Pool`` that computes its shards.
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
    hangs: int = 0  # sessions in a row that it ended by hanging


@runtime_checkable
class Pool(Protocol):
    """The processes that compute the shards. ``progress`` is called with the number of samples done."""

    def choose_batch(self) -> int:
        """The batch size of the settings, or else one that fits into memory."""

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        """Compute and commit the pending shards; those that could not be computed."""

    def bound(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        """Compute, or refine, and commit the bounds of finished shards; those that could not be computed."""

    def verify(self, progress: Callable[[int], None]) -> dict[str, int]:
        """Read every stored row back and check it on the plain model: the number of ``rows`` and of ``failed`` ones."""

    def about(self) -> dict[str, Any]:
        """What the manifest should say about this session once it has measured."""


Engine: TypeAlias = Callable[[Job, RunFolder, Session], AbstractContextManager[Pool]]
