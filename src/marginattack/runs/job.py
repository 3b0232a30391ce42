"""A job: the opened model, data and attacks of a run, and everything that identifies it."""

import hashlib
import json
import platform
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack._version import __version__
from marginattack.analysis.diagnose import Examination, examine
from marginattack.attacks import Attack
from marginattack.core.classifier import Classifier
from marginattack.core.draws import uniform
from marginattack.core.norms import NORMS
from marginattack.core.randomized import Randomized
from marginattack.errors import InputError, choose, one_line, redact
from marginattack.execution.memory import fitting_batch_size
from marginattack.execution.session import Session
from marginattack.measuring import check_radius, radius_of
from marginattack.runs.settings import Settings, build_attack
from marginattack.sources.classes import read_classes
from marginattack.sources.data import Data, check_options, open_data
from marginattack.sources.features import check_inside, describe, read_bounds, read_fixed, read_scale
from marginattack.sources.images import ImageSize
from marginattack.sources.models import Model, open_model
from marginattack.storage.manifest import Part, run_order
from marginattack.storage.run_folder import now

PREFLIGHT_SAMPLES = 256


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be measured: settings, and the opened model, data and attacks that they name."""

    settings: Settings
    model: Model
    data: Data
    data_digest: str
    attacks: dict[str, Attack]
    order: np.ndarray  # the samples' row numbers in the data, in the order of the run
    targets: Tensor | None  # of every row of the data, if read from a file
    space: dict[str, Any] = field(default_factory=dict)  # bounds, scale and fixed features, if given
    classes: list[str] | None = None  # their names, if given or known

    @property
    def parts(self) -> list[Part]:
        """Each attack under each norm."""
        return [Part(attack, norm) for attack in self.attacks for norm in self.settings.norms]

    @property
    def randomized(self) -> Randomized | None:
        """How a randomised model is measured; None for a deterministic one."""
        stated = self.settings.model_dump(include={"eot", "rate", "confidence", "draws"}, exclude_none=True)
        return Randomized(**stated) if self.settings.randomized else None

    def identity(self) -> dict[str, Any]:
        """Everything that the results depend on."""
        s = self.settings
        return {
            "marginattack": __version__,
            "model": {"digest": self.model.digest, "preprocessing": self.model.preprocessing},
            "data": {"digest": self.data_digest, "n": len(self.data), "shape": list(self.data.shape)},
            "limit": s.data.limit, "shuffle": s.data.shuffle, "only_correct": s.only_correct,
            **({} if s.data.sample is None else {"sample": self.order.tolist()}),
            **({"space": {name: describe(values) for name, values in self.space.items()}} if self.space else {}),
            "norms": s.norms, "attacks": {name: repr(attack) for name, attack in self.attacks.items()},
            "budget": s.budget, "seed": s.seed, "shard": s.shard, "lattice": s.lattice, "search": s.precision,
            "target": s.target if self.targets is None else hashlib.sha256(self.targets.numpy().tobytes()).hexdigest(),
            **({} if self.randomized is None else {"randomized": asdict(self.randomized)}),
        }  # fmt: skip

    def worker_identity(self) -> dict[str, Any]:
        """The identity and the stamp of the data; a worker whose data have this stamp need not hash them again."""
        identity: dict[str, Any] = json.loads(json.dumps(self.identity()))
        return {**identity, "stamp": self.data.stamp()}

    def about(self) -> dict[str, Any]:
        """The rest of the manifest: what results do not depend on, but readers want to know."""
        identity = self.identity()
        return {
            "parts": [asdict(part) for part in self.parts],
            "samples": len(self.order),
            "shard": self.settings.shard,
            "model": {"name": self.model.name, "classes": self.classes, **identity["model"]},
            "data": {"name": self.data.name, "classes": self.data.classes, "features": self.data.features,
                     "names": self.data.names is not None, **identity["data"]},
            "attacks": identity["attacks"],
            "radii": {name: eps for name, each in self.attacks.items() if (eps := radius_of(each)) is not None},
            "settings": self.settings.model_dump(),
            **({} if self.randomized is None else {"randomized": str(self.randomized)}),
            "versions": {"marginattack": __version__, "python": platform.python_version(),
                         "torch": str(torch.__version__), "numpy": np.__version__, "system": platform.platform()},
            "started": now(),
            "sessions": [],
        }  # fmt: skip

    def session(self, batch: int, device: torch.device) -> dict[str, Any]:
        """Where and how this process works on the run."""
        return {"began": now(), "host": socket.gethostname(), "hardware": hardware(device), "batch": batch,
                "torch": str(torch.__version__),
                "command": redact(shlex.join(["marginattack", *sys.argv[1:]]))}  # fmt: skip

    def samples(self, positions: Sequence[int] | range) -> tuple[Tensor, Tensor, Tensor]:
        """The ids, images and labels at these positions of the run's order."""
        ids = torch.from_numpy(self.order[list(positions)])
        images, labels = self.data.read(ids.tolist())
        if "bounds" in self.space:
            check_inside(self.data, ids, images, self.space)
        return ids, images, labels

    def choose_targets(self, ids: Tensor, y: Tensor, logits: Tensor) -> Tensor | None:
        """The target class of each sample; None in an untargeted run."""
        if self.targets is not None:
            return self.targets[ids]
        classes = logits.shape[1]
        if self.settings.target == "random":
            draw = uniform(ids, 1, seed=self.settings.seed, draw=torch.tensor(-1), like=logits.double())
            return (y + 1 + (draw[:, 0] * (classes - 1)).long()) % classes
        if self.settings.target == "least-likely":
            return logits.scatter(1, y[:, None], torch.inf).argmin(1)
        return None

    def with_shards_of(self, size: int) -> "Job":
        """The same job in shards of this many samples."""
        return replace(self, settings=self.settings.model_copy(update={"shard": size}))

    def resume(self, manifest: Mapping[str, Any]) -> "Job":
        """The same job with choices of an earlier session: its shard size, and float32, once the default precision."""
        s, search = self.settings, manifest["identity"].get("search")
        precision = search if (s.precision, search) == ("auto", "float32") else s.precision
        update = {"shard": s.shard or manifest["shard"], "precision": precision}
        return replace(self, settings=s.model_copy(update=update))

    def make_classifier(self) -> Classifier:
        """The model with the bounds, precision and randomisation of the settings."""
        s = self.settings
        return Classifier(
            self.model.module, **{"bounds": (0.0, 1.0), **self.space}, precision=s.precision, compiled=s.compiled,
            randomized=self.randomized or False,
        )  # fmt: skip

    def choose_batch(self, session: Session) -> int:
        """The batch size of the settings, or else the largest that fits into memory."""
        if self.settings.batch is not None:
            return self.settings.batch
        _, images, labels = self.samples([0])
        image = session.validate(images, labels).images[0]
        fitting = fitting_batch_size(session, image)
        return min(fitting, self.settings.shard or fitting)


def open_job(settings: Settings, driver: Mapping[str, Any] | None = None) -> Job:
    """Open everything that the settings name; all data are hashed, unless they have the driver's stamp."""
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    m, d = settings.model, settings.data
    attacks = _build_attacks(settings)
    model = open_model(
        m.source, normalize=m.normalize, resize=m.resize, crop=m.crop, trust_pickle=m.trust_pickle, device=device,
        max_gib=settings.max_gib, strip_softmax=m.strip_softmax,
    )  # fmt: skip
    size = model.image_size if d.image_size is None else ImageSize.parse(d.image_size)
    check_options(d.source, {"image-size": d.image_size, "bounds": d.bounds})
    data = open_data(
        d.source, labels=d.labels, split=d.split, image_size=size, trust_pickle=m.trust_pickle,
        max_gib=settings.max_gib, features=d.features, layout=d.layout, raw=d.bounds is not None,
    )  # fmt: skip
    order = run_order(len(data), d.shuffle) if d.sample is None else _draw(data.all_labels(), d.sample, d.shuffle or 0)
    known = driver is not None and driver["stamp"] == data.stamp() != ""
    digest = driver["data"]["digest"] if driver is not None and known else data.digest()
    return Job(
        settings=settings, model=model, data=data, data_digest=digest, attacks=attacks,
        order=order[: d.limit], targets=_read_targets(settings.target, len(data)),
        space=read_space(settings, data), classes=model.classes if d.classes is None else read_classes(d.classes),
    )  # fmt: skip


def read_space(settings: Settings, data: Data) -> dict[str, Any]:
    """The bounds, scale and fixed features that are stated."""
    readers = {"bounds": read_bounds, "scale": read_scale, "fixed": read_fixed}
    stated = settings.data.model_dump(include={*readers}, exclude_none=True)
    return {name: readers[name](text, data, settings.max_gib) for name, text in stated.items()}


def _draw(labels: Tensor, n: int, seed: int) -> np.ndarray:
    """Draw n rows, equally many per class as far as possible; any prefix of them is balanced too."""
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = np.argsort(labels.numpy()[order], kind="stable")
    counts = np.bincount(labels.numpy())
    rank = np.empty(len(order), dtype=np.int64)  # of each row among those of its class
    rank[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(order[np.argsort(rank, kind="stable")[:n]])


def run_preflight(job: Job) -> Examination:
    """Diagnose the model before anything is measured, on samples spread over the run."""
    positions = np.unique(np.linspace(0, len(job.order) - 1, min(PREFLIGHT_SAMPLES, len(job.order))).astype(int))
    _, images, labels = job.samples(positions.tolist())
    return examine(
        job.model.module, images, labels, bare=job.model.bare, was_training=job.model.was_training,
        preprocessing=job.model.preprocessing, expect_accuracy=job.settings.expect_accuracy,
        randomized=job.settings.randomized, space=Classifier(job.model.module, **job.space).space,
    )  # fmt: skip


def check_labels(job: Job, session: Session) -> None:
    """Raise InputError for labels or targets outside the model's classes, targets equal to labels, and large radii."""
    _, images, labels = job.samples(range(min(2, len(job.order))))
    samples = session.validate(images, labels)
    for part in job.parts:
        check_radius(session, samples, NORMS[part.norm], job.attacks[part.attack])
    classes = samples.classes
    if job.settings.data.classes is not None and len(job.classes or ()) != classes:
        problem = f"--classes {job.settings.data.classes} has {len(job.classes or ())} names"
        raise InputError(f"{problem}, but the model has {classes} classes: give one name per class")
    every: Tensor | None = getattr(job.data, "labels", None)
    for what, values in (("label", every), ("target", job.targets)):
        if values is not None and bool((outside := values[job.order] >= classes).any()):
            row = int(job.order[int(outside.nonzero()[0])])
            known = f"but the model has classes 0 to {classes - 1}"
            raise InputError(f"the {what} of row {row} is {int(values[row])}, {known}: use data that fit the model")
    if every is not None and job.targets is not None and bool((same := (every == job.targets)[job.order]).any()):
        row = int(job.order[int(same.nonzero()[0])])
        raise InputError(f"--target names class {int(every[row])} for row {row}, its label: give another class")


def hardware(device: torch.device) -> str:
    """Describe a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def _build_attacks(settings: Settings) -> dict[str, Attack]:
    attacks = {name: build_attack(name, settings.attack.get(name, {})) for name in settings.attacks}
    unused = [name for name in settings.attack if name not in settings.attacks]
    if unused:
        raise InputError(f"settings are given for the attack {unused[0]}, which is not run: add --attack {unused[0]}")
    for attack in attacks.values():
        for norm in settings.norms:
            attack.check_norm(NORMS[norm])
    return attacks


def _read_targets(target: str | None, n: int) -> Tensor | None:
    """The target class of each row of the data, if ``target`` is a file."""
    if target in (None, "random", "least-likely"):
        return None
    path = Path(str(target))
    try:
        values = (
            np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: its size must agree with its header
            if path.suffix == ".npy"
            else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
    except (OSError, ValueError) as error:
        reason = f"{one_line(error).rstrip('.')}; {choose(str(target), ('random', 'least-likely'))}"
        raise InputError(f"--target {target} is neither random, least-likely nor a file of classes: {reason}") from None
    if values.shape != (n,) or values.dtype.kind not in "iu":
        content = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"--target {target} holds {content}: give {n} integers, one per row of the data")
    return torch.from_numpy(values.astype(np.int64))
