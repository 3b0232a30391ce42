"""One shard after another, in this process."""

from collections.abc import Callable

from marginattack.classifier import Classifier
from marginattack.job import Job
from marginattack.store import Store


def execute(job: Job, store: Store, classifier: Classifier, batch: int, progress: Callable[[int], None]) -> None:
    """Compute and commit whatever is missing. Each shard's samples are read once for all its parts."""
    held, samples = -1, None
    for shard, part in store.pending():
        if samples is None or shard != held:
            held, samples = shard, job.samples(store.shards[shard])
        columns, images, about = job.compute(classifier, part, samples, batch, progress)
        store.commit(part, shard, columns, images, about)
        progress(len(store.shards[shard]) - len(columns["id"]))  # those that were left out
