"""Run the rows of a table, one attack each, batch by batch; the outcome of every finished batch is saved.

A run that was interrupted, or ended by its time limit, resumes where it stopped. Partial results can be summarised at
any time, with the n that was reached.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from marginattack.attacks import Attack
from marginattack.attacks.carlini_wagner import CarliniWagner
from marginattack.errors import InputError
from marginattack.measuring import measure
from marginattack.reproduce.models_under_test import ModelUnderTest
from marginattack.reproduce.records import encode
from marginattack.reproduce.wrapped_attacks import TF32_NOTE, LowPrecision, ResumedCW
from marginattack.storage.files import make_folder, write_atomically


@dataclass(kw_only=True)
class Outcome:
    """Distances and passes of one attack, sample by sample in the order of the data."""

    settings: str
    distance: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def extend(self, other: "Outcome") -> None:
        """Append the outcome of the next batch, and its settings if they differ."""
        if other.settings not in self.settings.split("; then "):
            self.settings += f"; then {other.settings}"
        self.distance += other.distance
        self.passes += other.passes
        self.seconds += other.seconds
        self.extra |= other.extra

    def summary(self) -> dict[str, Any]:
        """The settings, the median distance, the cost, and the distance of every sample for paired tests."""
        return {
            "settings": self.settings, "n": len(self.distance), "median": finite_or_none(np.median(self.distance)),
            "passes": float(np.mean(self.passes)), "seconds": self.seconds, "distances": encode(self.distance),
        }  # fmt: skip


def finite_or_none(value: Any) -> float | None:
    """None for infinity, which JSON does not have."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Batch(ModelUnderTest):
    """A model with consecutive images, and the outcomes of earlier rows by name."""

    ids: list[int]
    outcome_of: Callable[[str], Outcome]
    tf32: bool = False

    def select(self, rows: Sequence[int]) -> "Batch":
        """The batch of these rows alone."""
        ids = [self.ids[row] for row in rows]
        return replace(self, images=self.images[list(rows)], labels=self.labels[list(rows)], ids=ids)

    def describe(self, attack: Attack) -> str:
        """The settings of an attack, and its precision if that is not float32."""
        return repr(attack) + (TF32_NOTE if self.tf32 else "")

    def measure(self, attack: Attack, norm: str) -> Outcome:
        """Run one attack on these images, in one batch."""
        wrapped, precision = (LowPrecision(attack=attack), "tf32") if self.tf32 else (attack, "float32")
        began = time.perf_counter()
        margins = measure(
            self.model, self.images, self.labels, norm, attack=wrapped, batch=len(self.images), ids=self.ids,
            precision=precision,
        )  # fmt: skip
        return Outcome(
            settings=self.describe(attack), distance=margins.distance.tolist(),
            passes=(margins.forwards + margins.backwards).tolist(), seconds=time.perf_counter() - began,
        )  # fmt: skip


RunBatch = Callable[[Batch], dict[str, Outcome]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: what to run, the model, the number of samples, and the batch size."""

    name: str
    model: str
    n: int
    batch_size: int
    run: RunBatch


def attack_row(name: str, attack: Attack, norm: str, *, model: str, n: int, batch_size: int) -> Row:
    """A row of a single attack."""
    return Row(
        name=name, model=model, n=n, batch_size=batch_size, run=lambda batch: {name: batch.measure(attack, norm)}
    )


def run_cw(attack: CarliniWagner, names: dict[int, str]) -> RunBatch:
    """CW with each of these increasing numbers of searches, as one run with the largest: the best point after each."""

    def run(batch: Batch) -> dict[str, Outcome]:
        state: dict[str, Tensor] = {}
        outcomes: dict[str, Outcome] = {}
        best, passes, seconds, before = np.full(len(batch.images), np.inf), np.zeros(len(batch.images), int), 0.0, 0
        for searches, name in names.items():
            part = batch.measure(ResumedCW(attack=attack, searches=searches - before, state=state), "l2")
            best, passes, seconds = np.minimum(best, part.distance), passes + part.passes, seconds + part.seconds
            settings = batch.describe(replace(attack, searches=searches))
            outcomes[name] = Outcome(
                settings=settings, distance=best.tolist(), passes=[int(p) for p in passes], seconds=seconds
            )
            before = searches
        return outcomes

    return run


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    """Write a file atomically."""
    make_folder(path.parent)
    with write_atomically(path) as file:
        file.write((json.dumps(content, indent=indent) + "\n").encode())


def outcome_file(folder: Path, row: str) -> Path:
    """The file with the outcomes of a row."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-") + ".json")


def load_outcomes(folder: Path, row: str) -> dict[str, Outcome]:
    """The outcomes of a row by name; empty if it has not run."""
    file = outcome_file(folder, row)
    stored = json.loads(file.read_text()) if file.exists() else {}
    return {name: Outcome(**outcome) for name, outcome in stored.items()}


def run_row(
    row: Row, folder: Path, test: ModelUnderTest, *,
    limit: float = float("inf"), tf32: bool = False, log: Callable[[str], None] = lambda line: None,
) -> bool:  # fmt: skip
    """Resume a row until its n, or for about ``limit`` seconds; returns whether it measured anything."""

    def outcome_of(name: str) -> Outcome:
        earlier = load_outcomes(folder, name)
        if name not in earlier:
            raise InputError(f"{row.name} needs the margins of {name}: run that row first")
        return earlier[name]

    outcomes, began = load_outcomes(folder, row.name), time.perf_counter()
    before = done = min((len(outcome.distance) for outcome in outcomes.values()), default=0)
    n = min(row.n, len(test.images))
    while done < n:
        ids = range(done, min(done + row.batch_size, n))
        images, labels = (part[ids.start : ids.stop] for part in (test.images, test.labels))
        batch = Batch(model=test.model, images=images, labels=labels, ids=list(ids), outcome_of=outcome_of, tf32=tf32)
        for name, outcome in row.run(batch).items():
            outcomes.setdefault(name, Outcome(settings=outcome.settings)).extend(outcome)
        stored = {name: asdict(outcome) for name, outcome in outcomes.items()}
        write_json(outcome_file(folder, row.name), stored, indent=None)
        done, spent = ids.stop, time.perf_counter() - began
        log(f"{row.name}: {done} of {n}, {spent:.0f} s")
        if spent * (1 + row.batch_size / done) > limit:  # the next batch would exceed it
            break
    return done > before
