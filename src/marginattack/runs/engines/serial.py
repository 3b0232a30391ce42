"""The serial engine: one shard after another, in this process.

A shard that takes longer than ``--shard-timeout`` hangs inside the model, where nothing can stop it safely: a watchdog
records it in the manifest, says so and ends the process, as a kill would. The next session tries it last; after
``HANGS`` sessions it is reported as failed, and the run is finished without it.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from marginattack.execution.session import Session
from marginattack.runs.engines import FailedShard, Pool
from marginattack.runs.failures import KEPT, name_samples
from marginattack.runs.job import Job
from marginattack.runs.shards import ShardRunner
from marginattack.storage.run_folder import Part, RunFolder

HANGS = 2


@contextmanager
def serial_engine(job: Job, folder: RunFolder, session: Session) -> Iterator[Pool]:
    """Compute the shards of a run in this process."""
    yield SerialPool(ShardRunner(job, folder, session))


class SerialPool:
    """Computes shards in this process, with the model as it was opened. An error ends the run."""

    def __init__(self, runner: ShardRunner) -> None:
        self.runner, self.folder = runner, runner.folder
        earlier = self.folder.manifest.get("failed_shards", [])
        self.hangs = {(each["shard"], Part(each["attack"], each["norm"])): each.get("hangs", 0) for each in earlier}

    def choose_batch(self) -> int:
        return self.runner.job.choose_batch(self.runner.session)

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        failed = []
        for shard, part in sorted(self.folder.pending(), key=lambda each: self.hangs.get(each, 0)):
            if self.hangs.get((shard, part), 0) >= HANGS:  # the next session tries it again
                failed.append(self._describe_hang(shard, part, hangs=0))
                continue
            with self._deadline(shard, part):
                self.runner.measure(shard, part, batch, progress)
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
        return self.runner.session.describe()

    @contextmanager
    def _deadline(self, shard: int, part: Part) -> Iterator[None]:
        """End the process if the block takes longer than a shard may."""
        watchdog = threading.Timer(self.runner.job.settings.shard_timeout, self._end_process, (shard, part))
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()

    def _end_process(self, shard: int, part: Part) -> None:
        hung = self._describe_hang(shard, part, hangs=self.hangs.get((shard, part), 0) + 1)
        others = [each for each in self.folder.manifest.get("failed_shards", [])
                  if (each["shard"], Part(each["attack"], each["norm"])) != (shard, part)]  # fmt: skip
        try:
            self.folder.update_manifest(failed_shards=[*others, asdict(hung)])
        finally:
            where = f"{name_samples(hung.ids)} ({part.attack} {part.norm}, shard {shard})"
            line = f"marginattack: the model hangs on {where}: {hung.error}; {KEPT}"
            cursor = "\033[?25h\n" if sys.stderr.isatty() else ""  # which the progress bar hides
            print(f"{cursor}{line}", file=sys.stderr, flush=True)
            os._exit(2)

    def _describe_hang(self, shard: int, part: Part, hangs: int) -> FailedShard:
        ids = self.runner.job.order[list(self.folder.shards[shard])].tolist()
        error = f"no result within {self.runner.job.settings.shard_timeout} s (--shard-timeout)"
        return FailedShard(shard=shard, attack=part.attack, norm=part.norm, error=error, ids=ids, hangs=hangs)
