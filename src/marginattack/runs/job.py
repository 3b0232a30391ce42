"""A run: the model, the data and the settings opened; what one shard of it is; and the order of everything.

open → diagnose → shards (an engine executes them) → read back and check → diagnose again
"""

import hashlib
import platform
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack._version import __version__
from marginattack.analysis.diagnose import Finding, preflight
from marginattack.attacks import Attack
from marginattack.core.classifier import Classifier
from marginattack.core.draws import uniform
from marginattack.core.norms import NORMS
from marginattack.errors import InputError, one_line
from marginattack.execution.memory import fitting_batch
from marginattack.measure import measure
from marginattack.runs.lattice import on_lattice
from marginattack.runs.settings import Settings, build_attack
from marginattack.sources.data import Data, check_options, open_data
from marginattack.sources.images import ImageSize
from marginattack.sources.models import Model, open_model
from marginattack.storage.run_folder import COLUMNS, Part, now

PREFLIGHT = 256  # samples that the first diagnosis looks at


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be measured, ready to be executed shard by shard."""

    settings: Settings
    model: Model
    data: Data
    data_digest: str
    attacks: dict[str, Attack]
    order: np.ndarray  # the samples' row numbers in the data, in the order of the run
    targets: Tensor | None  # of every row of the data, where a file states them

    @property
    def parts(self) -> list[Part]:
        """Each attack under each norm."""
        return [Part(attack, norm) for attack in self.attacks for norm in self.settings.norms]

    def identity(self) -> dict[str, Any]:
        """All that the results depend on."""
        s = self.settings
        return {
            "marginattack": __version__,
            "model": {"digest": self.model.digest, "preprocessing": self.model.preprocessing},
            "data": {"digest": self.data_digest, "n": len(self.data), "shape": list(self.data.shape)},
            "limit": s.data.limit, "shuffle": s.data.shuffle, "only_correct": s.only_correct,
            "norms": s.norms, "attacks": {name: repr(attack) for name, attack in self.attacks.items()},
            "budget": s.budget, "seed": s.seed, "shard": s.shard, "lattice": s.lattice,
            "target": s.target if self.targets is None else _digest(self.targets),
            **({} if s.search == "float32" else {"search": s.search}),  # runs from before there was a choice go on
        }  # fmt: skip

    def about(self) -> dict[str, Any]:
        """What else a reader of the results wants to know."""
        return {
            "parts": [asdict(part) for part in self.parts],
            "samples": len(self.order),
            "shard": self.settings.shard,
            "model": {"name": self.model.name, "digest": self.model.digest, "classes": self.model.classes,
                      "preprocessing": self.model.preprocessing},
            "data": {"name": self.data.name, "digest": self.data_digest, "n": len(self.data),
                     "shape": list(self.data.shape), "classes": self.data.classes},
            "attacks": {name: repr(attack) for name, attack in self.attacks.items()},
            "settings": self.settings.model_dump(),
            "versions": versions(),
            "started": now(),
            "sessions": [],
        }  # fmt: skip

    def session(self, batch: int, device: torch.device) -> dict[str, Any]:
        """Where and how this process takes part."""
        return {"began": now(), "host": socket.gethostname(), "hardware": hardware(device), "batch": batch,
                "torch": str(torch.__version__),
                "command": shlex.join(["marginattack", *sys.argv[1:]])}  # fmt: skip

    def samples(self, places: Sequence[int] | range) -> tuple[Tensor, Tensor, Tensor]:
        """The numbers, images and labels at these places of the run's order."""
        ids = self.order[list(places)]
        images, labels = self.data.read([int(i) for i in ids])
        return torch.from_numpy(ids), images, labels

    def compute(
        self, classifier: Classifier, part: Part, samples: tuple[Tensor, Tensor, Tensor], batch: int,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, int]]:  # fmt: skip
        """One shard of one part: its columns, its images, and how many samples were looked at and right."""
        ids, x, y = samples
        seen, norm, targets, right = len(ids), NORMS[part.norm], None, None
        with classifier.held():
            x, y, _ = classifier.accept(x, y)
        if self.settings.only_correct or self.settings.target is not None:
            with classifier.held():
                logits = classifier.answers(x, ids)
            right = logits.argmax(1) == y
            if self.settings.only_correct:
                ids, x, y, logits = ids[right], x[right], y[right], logits[right]
            targets = self.targets_of(ids, y, logits)
        if len(ids) == 0:
            return *_empty(x, self.settings.lattice), {"seen": seen, "right": 0}
        margins = measure(
            classifier, x, y, norm, attack=self.attacks[part.attack], budget=self.settings.budget, targets=targets,
            seed=self.settings.seed, ids=ids, batch=min(batch, classifier.chunk), progress=progress,
        )  # fmt: skip
        columns: dict[str, Any] = {name: getattr(margins, name) for name in margins.columns() if name != "adversarial"}
        columns |= {"id": ids, "input": [fingerprint(image) for image in x]}
        columns["target"] = torch.full_like(y, -1) if targets is None else targets
        images = {"original": x, "adversarial": margins.adversarial}
        if self.settings.lattice:
            with classifier.held():
                images["adversarial_255"], columns["distance_255"] = on_lattice(
                    classifier, x, margins.adversarial, y, targets, norm
                )
        right = margins.prediction == margins.label if right is None else right
        return columns, images, {"seen": seen, "right": int(right.sum())}

    def targets_of(self, ids: Tensor, y: Tensor, logits: Tensor) -> Tensor | None:
        """The class that each sample is to be taken to, where the run is targeted."""
        if self.targets is not None:
            return self.targets[ids]
        classes = logits.shape[1]
        if self.settings.target == "random":
            draw = uniform(ids, 1, seed=self.settings.seed, draw=torch.tensor(-1), like=logits.double())
            return (y + 1 + (draw[:, 0] * (classes - 1)).long()) % classes
        if self.settings.target == "least-likely":
            return logits.scatter(1, y[:, None], torch.inf).argmin(1)
        return None


def open_job(settings: Settings) -> Job:
    """Open everything that the settings name."""
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    m, d = settings.model, settings.data
    attacks = {name: build_attack(name, settings.attack.get(name, {})) for name in settings.attacks}
    stray = [name for name in settings.attack if name not in settings.attacks]
    if stray:
        raise InputError(f"settings are given for the attack {stray[0]}, which is not run: add --attack {stray[0]}")
    for name, attack in attacks.items():
        for norm in settings.norms:
            if norm not in attack.norms:
                raise InputError(
                    f"{name} is made for {', '.join(attack.norms)}, not {norm}: choose another norm or attack"
                )
    model = open_model(
        m.source, normalize=m.normalize, resize=m.resize, crop=m.crop, trust_pickle=m.trust_pickle, device=device
    )
    size = model.image_size if d.image_size is None else ImageSize.parse(d.image_size)
    check_options(d.source, {"image-size": d.image_size})
    data = open_data(d.source, labels=d.labels, split=d.split, image_size=size, trust_pickle=m.trust_pickle)
    order = np.arange(len(data)) if d.shuffle is None else np.random.default_rng(d.shuffle).permutation(len(data))
    targets = _targets(settings.target, len(data))
    return Job(
        settings=settings, model=model, data=data, data_digest=data.digest(), attacks=attacks, order=order[: d.limit],
        targets=targets,
    )  # fmt: skip


def examine(job: Job) -> list[Finding]:
    """The first diagnosis, before anything is measured, on some samples spread over the run."""
    places = np.unique(np.linspace(0, len(job.order) - 1, min(PREFLIGHT, len(job.order))).astype(int))
    _, images, labels = job.samples(places.tolist())
    return preflight(
        job.model.module, images, labels, bare=job.model.bare, was_training=job.model.was_training,
        preprocessing=job.model.preprocessing, expect_accuracy=job.settings.expect_accuracy,
    )  # fmt: skip


def check_labels(job: Job, classifier: Classifier) -> None:
    """Refuse labels and targets that the model has no class for, and targets that are the label, before a long run."""
    _, images, labels = job.samples(range(min(2, len(job.order))))
    with classifier.held():
        classifier.accept(images, labels)
    every: Tensor | None = getattr(job.data, "labels", None)
    for what, values in (("label", every), ("target", job.targets)):
        if values is None:
            continue
        outside = (values[job.order] >= classifier.classes).nonzero()[:, 0]
        if len(outside):
            row = int(job.order[outside[0]])
            there = f"but the model has classes 0 to {classifier.classes - 1}"
            raise InputError(
                f"the {what} of row {row} is {int(values[row])}, {there}: do data and model belong together?"
            )
    if every is not None and job.targets is not None:
        same = (every == job.targets)[job.order].nonzero()[:, 0]
        if len(same):
            row = int(job.order[same[0]])
            raise InputError(f"--target names class {int(every[row])} for row {row}, its label: give another class")


def choose_batch(job: Job, classifier: Classifier) -> int:
    """As stated, or as fits into memory."""
    if job.settings.batch is not None:
        return job.settings.batch
    _, images, labels = job.samples([0])
    with classifier.held():
        x, _, _ = classifier.accept(images, labels)
        return min(fitting_batch(classifier, x[0]), job.settings.shard)


def fingerprint(image: Tensor) -> str:
    """The same for the same pixels, in whatever run."""
    return hashlib.blake2b(np.ascontiguousarray(image.float().numpy()).tobytes(), digest_size=8).hexdigest()


@lru_cache
def versions() -> dict[str, str]:
    """Of everything that the numbers depend on."""
    return {"marginattack": __version__, "python": platform.python_version(), "torch": str(torch.__version__),
            "numpy": np.__version__, "system": platform.platform()}  # fmt: skip


def hardware(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def _targets(target: str | None, n: int) -> Tensor | None:
    """One class a row of the data, where a file states them."""
    if target in (None, "random", "least-likely"):
        return None
    path = Path(str(target))
    try:
        values = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
    except (OSError, ValueError) as error:
        reason = one_line(error)
        raise InputError(f"--target {target} is neither random, least-likely nor a file of classes: {reason}") from None
    if values.shape != (n,) or values.dtype.kind not in "iu":
        raise InputError(
            f"--target {target} holds {values.dtype} of shape {values.shape}: give {n} integers, one a row of the data"
        )
    return torch.from_numpy(values.astype(np.int64))


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()


def _empty(x: Tensor, lattice: int | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The columns and images of a shard without rows."""
    names = [name for name in COLUMNS if name not in ("attack", "norm", "distance_255")]
    images = {"original": x, "adversarial": x}
    if not lattice:
        return {name: [] for name in names}, images
    return {name: [] for name in [*names, "distance_255"]}, {**images, "adversarial_255": x.to(torch.uint8)}
