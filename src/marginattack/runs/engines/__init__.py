"""How the shards of a run are executed; what a shard is and how it is committed is not theirs to say.

An engine is called with the run and gives, for as long as a ``with`` lasts, a pool that executes its shards.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from marginattack.core.classifier import Classifier
from marginattack.runs.job import Job
from marginattack.storage.run_folder import Store


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """A shard that failed again and again, and why."""

    shard: int
    attack: str
    norm: str
    error: str


class Pool(ABC):
    """Whoever computes the shards. ``progress`` is told how many samples were done."""

    @abstractmethod
    def batch(self) -> int:
        """How many samples go side by side, where the settings do not say."""

    @abstractmethod
    def measure(self, batch: int, progress: Callable[[int], None]) -> list[SetAside]:
        """Compute and commit whatever is missing; what could not be computed."""

    @abstractmethod
    def check(self, progress: Callable[[int], None]) -> dict[str, int]:
        """Read every stored row back and check it on the bare model: how many rows, and how many fail."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the session of a manifest should say about it, once it has measured."""


Engine: TypeAlias = Callable[[Job, Store, Classifier], AbstractContextManager[Pool]]
