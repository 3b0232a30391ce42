"""One cell of the suite: an attack with a budget and a seed on the samples of a (model, norm), run or read back."""

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from networks import NETWORKS, network
from record import DEVICE, conditions, correct_samples
from torch import Tensor, nn

from marginattack.analysis import benchmarking as bench
from marginattack.attacks.attack import Attack
from marginattack.attacks.external.base import ExternalAttack
from marginattack.core.budget import BudgetExhausted
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.execution.session import open_session
from marginattack.reproduce.models_under_test import load_efficientnet, read_npz
from marginattack.sources.data import SAMPLES, samples
from marginattack.sources.models import open_model
from marginattack.sources.networks import ZOO

REFERENCE = ("race", 100)  # whose largest margin sets APGD's largest radius
RADIUS_SHARE = 0.6  # of that margin: APGD bisects up to twice its largest radius


class Cell(NamedTuple):
    """What is run: an attack by name, passes per sample, a seed, and the first n samples."""

    attack: str
    budget: int
    seed: int
    n: int

    @property
    def file(self) -> str:
        return f"{self.attack.replace(':', '_')}-{self.budget}-{self.seed}.npz"


class SuiteModel(NamedTuple):
    """A model of the suite; the first part of its name is its data set."""

    name: str
    open: Callable[[], nn.Module]

    @property
    def data(self) -> str:
        return self.name.split("-")[0]

    def read(self, files: dict[str, list[str]]) -> tuple[Tensor, Tensor]:
        """The data set: from its files, or else the bundled samples."""
        if self.data in files:
            return read_npz(files[self.data])
        if self.data not in SAMPLES:
            raise SystemExit(f"{self.name} needs its data: give --data {self.data}=FILE.npz")
        return samples(self.data)


def models(added: tuple[str, ...] = ()) -> dict[str, SuiteModel]:
    """The models by name; ``added`` are NAME=SOURCE."""
    known = {name: SuiteModel(name, partial(network, name)) for name in (*ZOO, *NETWORKS)}
    known["imagenet-efficientnet-lite0"] = SuiteModel("imagenet-efficientnet-lite0", load_efficientnet)
    for entry in added:
        name, _, source = entry.partition("=")
        known[name] = SuiteModel(name, partial(_open, source))
    return known


def _open(source: str) -> nn.Module:
    return open_model(source).module


class Workload(NamedTuple):
    """A model with the samples that every attack gets."""

    model: SuiteModel
    classifier: Classifier
    images: Tensor
    labels: Tensor
    digest: str  # of the weights and the samples: results of another workload are not mixed in


@cache
def prepare(name: str, added: tuple[str, ...], data: tuple[str, ...], count: int) -> Workload:
    """Open a model and choose the first samples that it classifies correctly; ``data`` are NAME=FILE[,FILE]."""
    files = {key: paths.split(",") for key, _, paths in (entry.partition("=") for entry in data)}
    model = models(added)[name]
    images, labels = model.read(files)
    module = model.open().to(DEVICE).eval()
    enough = 3 * count  # unless the model classifies fewer than a third correctly
    images, labels = (part.cpu() for part in correct_samples(module, images[:enough], labels[:enough], count))
    digest = hashlib.sha256()
    for tensor in (*module.state_dict().values(), images, labels):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return Workload(model, Classifier(module, batch_size=500), images, labels, digest.hexdigest()[:16])


def folder(work: Path, workload: Workload, norm: str) -> Path:
    """Where the cells of a (model, norm) are."""
    return work / f"{workload.model.name}_{norm}_{workload.digest}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End an attack that takes longer, keeping what it has found: some external attacks can search without end."""

    def finish(*_: object) -> None:
        raise BudgetExhausted

    before = signal.signal(signal.SIGALRM, finish)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1), 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_cell(
    work: Path, workload: Workload, norm: str, cell: Cell, limit: float, margins: bench.Numbers | None = None
) -> bench.Trial:
    """Run a cell and store its result; what the attack found within the time limit counts.

    ``margins`` are known ones of REFERENCE on these samples; without them it is run where they are needed.
    """
    deadline = time.monotonic() + limit
    attack = make_attack(work, workload, norm, cell, limit, margins)
    with open_session(workload.classifier) as session:
        batch = session.validate(workload.images[: cell.n], workload.labels[: cell.n])
        trial = bench.run_trial(
            session, batch, as_norm(norm), attack, budget=cell.budget, seed=cell.seed, batch=cell.n,
            guard=lambda: time_limit(deadline - time.monotonic()),
        )  # fmt: skip
    save(folder(work, workload, norm) / cell.file, workload, norm, cell, trial, cut=time.monotonic() >= deadline)
    return trial


def make_attack(
    work: Path, workload: Workload, norm: str, cell: Cell, limit: float, margins: bench.Numbers | None = None
) -> Attack:
    """The attack; APGD's largest radius is chosen so that its bisection resolves the margins of these samples."""
    attack = bench.attack_by_name(cell.attack, cell.budget)
    if isinstance(attack, ExternalAttack) and attack.function == "minimal_apgd":
        if margins is None:
            reference = Cell(*REFERENCE, 0, len(workload.images))
            path = folder(work, workload, norm) / reference.file
            known = load(path)[1] if path.exists() else run_cell(work, workload, norm, reference, limit)
            margins = known.distance
        found = margins[: cell.n][np.isfinite(margins[: cell.n])]
        attack = replace(attack, eps=RADIUS_SHARE * float(found.max()))
    return attack


def save(path: Path, workload: Workload, norm: str, cell: Cell, trial: bench.Trial, *, cut: bool) -> None:
    """Store the result of a cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "model": workload.model.name, "norm": norm, "digest": workload.digest, **cell._asdict(),
        "settings": trial.attack, "rejected": trial.rejected, "seconds": trial.seconds, "cut": cut, "on": conditions(),
    }  # fmt: skip
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        np.savez_compressed(
            file, distance=trial.distance, curve=trial.curve.astype(np.float32), forwards=trial.forwards,
            backwards=trial.backwards, about=np.array(json.dumps(about)),
        )  # fmt: skip
    scratch.replace(path)


def load(path: Path) -> tuple[dict[str, Any], bench.Trial]:
    """Read the result of a cell."""
    with np.load(path, allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        trial = bench.Trial(
            attack=about["settings"], budget=about["budget"], distance=arrays["distance"],
            curve=arrays["curve"].astype(np.float64), forwards=arrays["forwards"], backwards=arrays["backwards"],
            rejected=about["rejected"], seconds=about["seconds"],
        )  # fmt: skip
    return about, trial
