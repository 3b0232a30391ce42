"""Measuring one shard, the same in every engine and process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from marginattack.core.norms import NORMS
from marginattack.execution.precision import lowest_precision
from marginattack.execution.session import Session
from marginattack.measuring import measure_samples
from marginattack.runs.bound_shard import bound_shard
from marginattack.runs.failures import Samples, explain_model_error, is_model_error, model_errors, slice_samples
from marginattack.runs.job import Job
from marginattack.runs.lattice import search_lattice
from marginattack.runs.verify import fingerprints, verify_shard
from marginattack.storage.run_folder import COLUMNS, Part, RunFolder


class ShardRunner:
    """Measures shards in this process and commits them; the samples of a shard are read once for all its parts."""

    def __init__(self, job: Job, folder: RunFolder, session: Session) -> None:
        self.job, self.folder, self.session = job, folder, session
        self._batch = session.batch_size  # as requested; the session's is smaller after memory ran out
        self._shard, self._samples = -1, None  # type: int, Any
        self.precision = "float32"  # the lowest in which a sample was searched

    def measure(self, shard: int, part: Part, batch: int, progress: Callable[[int], None] | None = None) -> None:
        """Measure one part of a shard; ``progress`` is called with the number of samples done."""
        self._resize(batch)
        columns, images, counts = self._measure_or_explain(part, self._read(shard), progress)
        self.folder.commit(part, shard, columns, images, counts)

    def bound(self, shard: int, part: Part, batch: int, progress: Callable[[int], None] | None = None) -> None:
        """Bound the margins of a finished shard; ``progress`` is called with its number of samples."""
        self._resize(batch)
        bound_shard(self.job, self.folder, self.session, part, shard)
        if progress is not None:
            progress(len(self.folder.shards[shard]))

    def verify(self, shard: int, part: Part, batch: int) -> tuple[int, int]:
        """Verify a stored shard; return its number of rows, and how many fail."""
        self._resize(batch)
        with model_errors(torch.from_numpy(self.job.order[list(self.folder.shards[shard])]), "while verifying"):
            return verify_shard(self.folder, self.session, part, shard, self._read(shard))

    def _read(self, shard: int) -> Samples:
        """The ids, images and labels of a shard, which are read once for all its parts."""
        if shard != self._shard:
            self._samples = None  # free the last shard before the next is read
            self._shard, self._samples = shard, self.job.samples(self.folder.shards[shard])
        samples: Samples = self._samples
        return samples

    def _resize(self, batch: int) -> None:
        """Use this batch size; an unchanged one keeps the session with its captured graphs."""
        if self._batch != batch:
            self._batch, self.session = batch, self.session.configure(batch_size=batch)

    def _measure_or_explain(
        self, part: Part, samples: Samples, progress: Callable[[int], None] | None
    ) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, int]]:
        """Measure the samples; if the model fails on one, the error names it."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None:
                progress(more)

        try:
            measured = self._measure(part, samples, count)
            count(len(samples[0]) - done)  # those that --only-correct left out
            return measured
        except Exception as error:
            if not is_model_error(error):
                raise
            first = done if done < len(samples[0]) else 0  # the attack was done: --lattice failed
            size = len(samples[0]) if self.job.settings.only_correct else self.session.batch_size
            raise explain_model_error(
                error, slice_samples(samples, slice(first, first + size)), lambda some: self._measure(part, some, None)
            ) from error

    def _measure(
        self, part: Part, samples: Samples, progress: Callable[[int], None] | None
    ) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, int]]:
        """The columns and images of a shard, and how many samples were seen and classified correctly ("right")."""
        job, settings, norm, (ids, x, y) = self.job, self.job.settings, NORMS[part.norm], samples
        batch, correct = self.session.validate(x, y, ids=ids), None
        seen = len(batch)
        if settings.target is not None:
            self.session.seed_draws(settings.seed, batch.ids)
            logits, prediction, *_ = self.session.classify(batch)
            correct = prediction == batch.labels
            if settings.only_correct:
                batch, logits = batch.select(correct), logits[correct]
            if len(batch) == 0:
                return *_empty_shard(batch.images, job), {"seen": seen, "right": 0}
            targets = job.choose_targets(batch.ids, batch.labels, logits)
            batch = self.session.validate(batch.images, batch.labels, targets, batch.ids)
        margins, self.session = measure_samples(
            self.session, batch, norm, job.attacks[part.attack], batch=self.session.batch_size,
            budget=settings.budget, seed=settings.seed, progress=progress,
        )  # fmt: skip
        self.precision = lowest_precision([self.precision, margins.settings["precision"]])
        if correct is None:
            correct = margins.prediction == margins.label
            if settings.only_correct:  # by the stored predictions: those of a randomised model may change
                margins, batch = margins[correct], batch.select(correct)
                if len(batch) == 0:
                    return *_empty_shard(batch.images, job), {"seen": seen, "right": 0}
        columns: dict[str, Any] = {name: getattr(margins, name) for name in margins.columns() if name != "adversarial"}
        columns |= {"id": batch.ids, "input": fingerprints(batch.images)}
        if job.data.names is not None:
            columns["name"] = [job.data.names[i] for i in batch.ids.tolist()]
        columns["target"] = torch.full_like(batch.labels, -1) if batch.targets is None else batch.targets
        images = {"original": batch.images, "adversarial": margins.adversarial}
        if settings.lattice:
            found = search_lattice(self.session, batch, margins.adversarial, norm)
            images["adversarial_255"], columns["distance_255"] = found
        return columns, images, {"seen": seen, "right": int(correct.sum())}


def _empty_shard(x: Tensor, job: Job) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The columns and images of a shard without rows."""
    others = ("attack", "norm", "distance_255", *(["name"] if job.data.names is None else []))
    columns: dict[str, Any] = {name: [] for name in COLUMNS if name not in others}
    images = {"original": x, "adversarial": x}
    if job.settings.lattice:
        columns["distance_255"], images["adversarial_255"] = [], x.to(torch.uint8)
    return columns, images
