"""The serial engine: one shard after another, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from marginattack.execution.session import Session
from marginattack.runs.engines import FailedShard, Pool
from marginattack.runs.job import Job
from marginattack.runs.shards import ShardRunner
from marginattack.storage.run_folder import RunFolder


@contextmanager
def serial_engine(job: Job, folder: RunFolder, session: Session) -> Iterator[Pool]:
    """Compute the shards of a run in this process."""
    yield SerialPool(ShardRunner(job, folder, session))


class SerialPool:
    """Computes shards in this process, with the model as it was opened. An error ends the run."""

    def __init__(self, runner: ShardRunner) -> None:
        self.runner, self.folder = runner, runner.folder

    def choose_batch(self) -> int:
        return self.runner.job.choose_batch(self.runner.session)

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        for shard, part in self.folder.pending():
            self.runner.measure(shard, part, batch, progress)
        return []

    def verify(self, progress: Callable[[int], None]) -> dict[str, int]:
        rows = failed = 0
        batch = self.folder.manifest["sessions"][-1]["batch"]
        for shard, part in self.folder.finished():
            counts = self.runner.verify(shard, part, batch)
            rows, failed = rows + counts[0], failed + counts[1]
            progress(len(self.folder.shards[shard]))
        return {"rows": rows, "failed": failed}

    def about(self) -> dict[str, Any]:
        return self.runner.session.describe()
