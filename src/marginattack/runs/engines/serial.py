"""The serial engine: one shard after another, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from marginattack.core.classifier import Classifier
from marginattack.runs.engines import FailedShard, Pool
from marginattack.runs.job import Job
from marginattack.runs.shards import ShardRunner
from marginattack.runs.verify import verify_shard
from marginattack.storage.run_folder import RunFolder


@contextmanager
def serial_engine(job: Job, folder: RunFolder, classifier: Classifier) -> Iterator[Pool]:
    """Compute the shards of a run in this process."""
    yield SerialPool(job, folder, classifier)


@dataclass(frozen=True)
class SerialPool:
    """Computes shards in this process, with the model as it was opened. An error ends the run."""

    job: Job
    folder: RunFolder
    classifier: Classifier

    def choose_batch(self) -> int:
        return self.job.choose_batch(self.classifier)

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        runner = ShardRunner(self.job, self.folder, self.classifier)
        with self.classifier.held():  # what is captured of the model for one shard serves the next
            for shard, part in self.folder.pending():
                runner.measure(shard, part, batch, progress)
        return []

    def verify(self, progress: Callable[[int], None]) -> dict[str, int]:
        rows = failed = 0
        for shard, part in self.folder.finished():
            counts = verify_shard(self.folder, self.classifier, part, shard)
            rows, failed = rows + counts[0], failed + counts[1]
            progress(len(self.folder.shards[shard]))
        return {"rows": rows, "failed": failed}

    def about(self) -> dict[str, Any]:
        return self.classifier.modes()
