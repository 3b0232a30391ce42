"""One shard after another, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from marginattack.core.classifier import Classifier
from marginattack.runs.engines import Pool, SetAside
from marginattack.runs.job import Job, choose_batch
from marginattack.runs.verify import check_shard
from marginattack.storage.run_folder import Store


@contextmanager
def in_this_process(job: Job, store: Store, classifier: Classifier) -> Iterator[Pool]:
    """The engine."""
    yield Serial(job, store, classifier)


@dataclass(frozen=True)
class Serial(Pool):
    """One process, with the model as it was opened."""

    job: Job
    store: Store
    classifier: Classifier

    def batch(self) -> int:
        return choose_batch(self.job, self.classifier)

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[SetAside]:
        """Each shard's samples are read once for all its parts. What fails ends the run."""
        held, samples = -1, None
        with self.classifier.held():  # what is captured of the model for one shard serves the next
            for shard, part in self.store.pending():
                if samples is None or shard != held:
                    held, samples = shard, self.job.samples(self.store.shards[shard])
                columns, images, about = self.job.compute(self.classifier, part, samples, batch, progress)
                self.store.commit(part, shard, columns, images, about)
                progress(len(self.store.shards[shard]) - len(columns["id"]))  # those that were left out
        return []

    def check(self, progress: Callable[[int], None]) -> dict[str, int]:
        rows = failed = 0
        for shard, part in self.store.finished():
            found = check_shard(self.store, self.classifier, part, shard)
            rows, failed = rows + found[0], failed + found[1]
            progress(len(self.store.shards[shard]))
        return {"rows": rows, "failed": failed}

    def about(self) -> dict[str, Any]:
        return self.classifier.modes()
