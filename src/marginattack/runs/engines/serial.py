"""The serial engine: one shard after another, in this process.

A shard that takes longer than ``--shard-timeout`` hangs inside the model and cannot be stopped safely: a watchdog
records it in the manifest, prints an error and ends the process, as a kill would. The next session tries that shard
last; after ``HANGS`` sessions it is reported as failed, and the run finishes without it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from marginattack.execution.session import Session
from marginattack.runs.bound_shard import bound_settings
from marginattack.runs.engines import FailedShard, Pool
from marginattack.runs.failures import end_process_after, exceeded, name_samples
from marginattack.runs.job import Job
from marginattack.runs.shards import ShardRunner
from marginattack.storage.bounds import open_bounds
from marginattack.storage.run_folder import Part, RunFolder

HANGS = 2
_LOG = logging.getLogger(__name__)


@contextmanager
def serial_engine(job: Job, folder: RunFolder, session: Session) -> Iterator[Pool]:
    """Compute the shards of a run in this process."""
    yield SerialPool(ShardRunner(job, folder, session))


class SerialPool:
    """Computes shards in this process, with the model that the driver opened. An error ends the run."""

    def __init__(self, runner: ShardRunner) -> None:
        self.runner, self.folder = runner, runner.folder
        earlier = self.folder.manifest.get("failed_shards", [])
        self.hangs = {(each["shard"], Part(each["attack"], each["norm"])): each.get("hangs", 0) for each in earlier}

    def choose_batch(self) -> int:
        return self.runner.job.choose_batch(self.runner.session)

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        return self._compute(self.runner.measure, self.folder.pending(), batch, progress)

    def bound(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        return self._compute(
            self.runner.bound, open_bounds(self.folder, bound_settings(self.runner.job)), batch, progress
        )

    def _compute(
        self, compute: Callable[..., None], pending: list[tuple[int, Part]], batch: int, progress: Callable[[int], None]
    ) -> list[FailedShard]:
        failed = []
        for shard, part in sorted(pending, key=lambda each: self.hangs.get(each, 0)):
            if self.hangs.get((shard, part), 0) >= HANGS:  # the next session tries it again
                failed.append(self._describe_hang(shard, part, hangs=0))
                continue
            with self._deadline(shard, part):
                compute(shard, part, batch, progress)
            _LOG.info("%s %s: shard %d of %d is stored", part.attack, part.norm, shard + 1, len(self.folder.shards))
        return failed

    def verify(self, progress: Callable[[int], None]) -> dict[str, int]:
        rows = failed = 0
        batch = self.folder.manifest["sessions"][-1]["batch"]
        for shard, part in self.folder.finished():
            with self._deadline(shard, part):
                counts = self.runner.verify(shard, part, batch)
            rows, failed = rows + counts[0], failed + counts[1]
            progress(len(self.folder.shards[shard]))
        return {"rows": rows, "failed": failed}

    def about(self) -> dict[str, Any]:
        return self.runner.session.describe(self.runner.precision)

    def _deadline(self, shard: int, part: Part) -> AbstractContextManager[None]:
        return end_process_after(self.runner.job.settings.shard_timeout, partial(self._record_hang, shard, part))

    def _record_hang(self, shard: int, part: Part) -> str:
        """Record in the manifest that a shard hangs; return where, for the error."""
        hung = self._describe_hang(shard, part, hangs=self.hangs.get((shard, part), 0) + 1)
        others = [each for each in self.folder.manifest.get("failed_shards", [])
                  if (each["shard"], Part(each["attack"], each["norm"])) != (shard, part)]  # fmt: skip
        with suppress(Exception):  # it is recorded for the next session only
            self.folder.update_manifest(failed_shards=[*others, asdict(hung)])
        return f"on {name_samples(hung.ids)} ({part.attack} {part.norm}, shard {shard})"

    def _describe_hang(self, shard: int, part: Part, hangs: int) -> FailedShard:
        ids = self.runner.job.order[list(self.folder.shards[shard])].tolist()
        error = exceeded(self.runner.job.settings.shard_timeout)
        return FailedShard(shard=shard, attack=part.attack, norm=part.norm, error=error, ids=ids, hangs=hangs)
