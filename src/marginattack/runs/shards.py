"""Measuring one shard: what every engine does, in whichever process."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.core.classifier import Classifier
from marginattack.core.norms import NORMS
from marginattack.measure import measure
from marginattack.runs.job import Job
from marginattack.runs.lattice import search_lattice
from marginattack.storage.run_folder import COLUMNS, Part, RunFolder


class ShardRunner:
    """Measures shards in this process and commits them; the samples of a shard are read once for all its parts."""

    def __init__(self, job: Job, folder: RunFolder, classifier: Classifier) -> None:
        self.job, self.folder, self.classifier = job, folder, classifier
        self._shard, self._samples = -1, None  # type: int, Any

    def measure(self, shard: int, part: Part, batch: int, progress: Callable[[int], None] | None = None) -> None:
        """Measure one part of a shard; ``progress`` is called with the number of samples done."""
        if shard != self._shard:
            self._samples = None  # free the last shard before the next is read
            self._shard, self._samples = shard, self.job.samples(self.folder.shards[shard])
        columns, images, counts = _measure(self.job, self.classifier, part, self._samples, batch, progress)
        self.folder.commit(part, shard, columns, images, counts)
        if progress is not None:
            progress(len(self.folder.shards[shard]) - len(columns["id"]))  # those that --only-correct left out


def fingerprint(image: Tensor) -> str:
    """A digest of the pixels, the same in any run."""
    return hashlib.blake2b(np.ascontiguousarray(image.float().numpy()).tobytes(), digest_size=8).hexdigest()


def _measure(
    job: Job, classifier: Classifier, part: Part, samples: tuple[Tensor, Tensor, Tensor], batch: int,
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, int]]:  # fmt: skip
    """The columns and images of a shard, and how many of its samples were seen and classified correctly ("right")."""
    settings, norm, (ids, x, y) = job.settings, NORMS[part.norm], samples
    seen, targets, correct = len(ids), None, None
    with classifier.held():
        x, y, _ = classifier.accept(x, y)
        if settings.only_correct or settings.target is not None:
            logits = classifier.answers(x, ids)
            correct = logits.argmax(1) == y
            if settings.only_correct:
                ids, x, y, logits = ids[correct], x[correct], y[correct], logits[correct]
            targets = job.choose_targets(ids, y, logits)
    if len(ids) == 0:
        return *_empty_shard(x, settings.lattice), {"seen": seen, "right": 0}
    margins = measure(
        classifier, x, y, norm, attack=job.attacks[part.attack], budget=settings.budget, targets=targets,
        seed=settings.seed, ids=ids, batch=min(batch, classifier.chunk), progress=progress,
    )  # fmt: skip
    columns: dict[str, Any] = {name: getattr(margins, name) for name in margins.columns() if name != "adversarial"}
    columns |= {"id": ids, "input": [fingerprint(image) for image in x]}
    columns["target"] = torch.full_like(y, -1) if targets is None else targets
    images = {"original": x, "adversarial": margins.adversarial}
    if settings.lattice:
        with classifier.held():
            images["adversarial_255"], columns["distance_255"] = search_lattice(
                classifier, x, margins.adversarial, y, targets, norm
            )
    correct = margins.prediction == margins.label if correct is None else correct
    return columns, images, {"seen": seen, "right": int(correct.sum())}


def _empty_shard(x: Tensor, lattice: int | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The columns and images of a shard without rows."""
    columns: dict[str, Any] = {name: [] for name in COLUMNS if name not in ("attack", "norm", "distance_255")}
    images = {"original": x, "adversarial": x}
    if lattice:
        columns["distance_255"], images["adversarial_255"] = [], x.to(torch.uint8)
    return columns, images
