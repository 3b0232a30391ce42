"""Measuring one shard: what every engine does, in whichever process."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marginattack.core.norms import NORMS
from marginattack.execution.session import Session
from marginattack.measuring import measure
from marginattack.runs.job import Job
from marginattack.runs.lattice import search_lattice
from marginattack.runs.verify import fingerprint, verify_shard
from marginattack.storage.run_folder import COLUMNS, Part, RunFolder


class ShardRunner:
    """Measures shards in this process and commits them; the samples of a shard are read once for all its parts."""

    def __init__(self, job: Job, folder: RunFolder, session: Session) -> None:
        self.job, self.folder, self.session = job, folder, session
        self._shard, self._samples = -1, None  # type: int, Any

    def measure(self, shard: int, part: Part, batch: int, progress: Callable[[int], None] | None = None) -> None:
        """Measure one part of a shard; ``progress`` is called with the number of samples done."""
        if shard != self._shard:
            self._samples = None  # free the last shard before the next is read
            self._shard, self._samples = shard, self.job.samples(self.folder.shards[shard])
        columns, images, counts = _measure(self.job, self._resize(batch), part, self._samples, progress)
        self.folder.commit(part, shard, columns, images, counts)
        if progress is not None:
            progress(len(self.folder.shards[shard]) - len(columns["id"]))  # those that --only-correct left out

    def verify(self, shard: int, part: Part, batch: int) -> tuple[int, int]:
        """Verify a stored shard: the number of rows, and of those that fail."""
        return verify_shard(self.folder, self._resize(batch), part, shard)

    def _resize(self, batch: int) -> Session:
        """The session with this batch size; what it captured for one shard serves the next."""
        if self.session.batch_size != batch:
            self.session = self.session.configure(batch_size=batch)
        return self.session


def _measure(
    job: Job, session: Session, part: Part, samples: tuple[Tensor, Tensor, Tensor],
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, int]]:  # fmt: skip
    """The columns and images of a shard, and how many of its samples were seen and classified correctly ("right")."""
    settings, norm, (ids, x, y) = job.settings, NORMS[part.norm], samples
    batch, correct = session.validate(x, y, ids=ids), None
    seen = len(batch)
    if settings.only_correct or settings.target is not None:
        logits = session.logits(batch.images, batch.ids)
        correct = logits.argmax(1) == batch.labels
        if settings.only_correct:
            batch, logits = batch.select(correct), logits[correct]
        batch = replace(batch, targets=job.choose_targets(batch.ids, batch.labels, logits))
    if len(batch) == 0:
        return *_empty_shard(batch.images, settings.lattice), {"seen": seen, "right": 0}
    margins = measure(
        session, batch.images, batch.labels, norm, attack=job.attacks[part.attack], budget=settings.budget,
        targets=batch.targets, seed=settings.seed, ids=batch.ids, batch=session.batch_size, progress=progress,
    )  # fmt: skip
    columns: dict[str, Any] = {name: getattr(margins, name) for name in margins.columns() if name != "adversarial"}
    columns |= {"id": batch.ids, "input": [fingerprint(image) for image in batch.images]}
    columns["target"] = torch.full_like(batch.labels, -1) if batch.targets is None else batch.targets
    images = {"original": batch.images, "adversarial": margins.adversarial}
    if settings.lattice:
        found = search_lattice(session, batch, margins.adversarial, norm)
        images["adversarial_255"], columns["distance_255"] = found
    correct = margins.prediction == margins.label if correct is None else correct
    return columns, images, {"seen": seen, "right": int(correct.sum())}


def _empty_shard(x: Tensor, lattice: int | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The columns and images of a shard without rows."""
    columns: dict[str, Any] = {name: [] for name in COLUMNS if name not in ("attack", "norm", "distance_255")}
    images = {"original": x, "adversarial": x}
    if lattice:
        columns["distance_255"], images["adversarial_255"] = [], x.to(torch.uint8)
    return columns, images
