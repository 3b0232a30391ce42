"""Rows: one attack of a table each, measured piece by piece, each piece kept as soon as it is done.

A run that was interrupted, or ended by its time limit, goes on where it was; what there is can be summarised at any
time, with the n that was reached.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from marginattack.attacks import Attack
from marginattack.attacks.carlini_wagner import CarliniWagner
from marginattack.errors import InputError
from marginattack.measuring import measure
from marginattack.reproduce.fast import NOTE, InTf32
from marginattack.reproduce.staged import Continued
from marginattack.storage.files import write_atomically


@dataclass(kw_only=True)
class Outcome:
    """What one attack found, sample by sample in the order of the data, and what it cost."""

    settings: str
    distance: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, other: "Outcome") -> None:
        """The next piece; settings that differ are told one after the other."""
        if other.settings not in self.settings.split("; then "):
            self.settings += f"; then {other.settings}"
        self.distance += other.distance
        self.passes += other.passes
        self.seconds += other.seconds
        self.extra |= other.extra


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some images in a row, and what the rows before this one found."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    ids: list[int]
    before: Callable[[str], Outcome]
    tf32: bool = False

    @property
    def note(self) -> str:
        """What the settings of an attack do not tell."""
        return NOTE if self.tf32 else ""

    def some(self, rows: Sequence[int]) -> "Piece":
        """These rows of it."""
        chosen = list(rows)
        return replace(
            self, images=self.images[chosen], labels=self.labels[chosen], ids=[self.ids[row] for row in chosen]
        )  # fmt: skip

    def measured(self, attack: Attack, norm: str) -> Outcome:
        """One attack on these images, in one batch."""
        searched = InTf32(attack=attack) if self.tf32 else attack
        began = time.perf_counter()
        margins = measure(
            self.model, self.images, self.labels, norm, attack=searched, batch=len(self.images), ids=self.ids
        )  # fmt: skip
        return Outcome(
            settings=repr(attack) + self.note, distance=margins.distance.tolist(),
            passes=(margins.forwards + margins.backwards).tolist(), seconds=time.perf_counter() - began,
        )  # fmt: skip


Run = Callable[[Piece], dict[str, Outcome]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """An attack of a table: what to run, on which subject, on how many samples at most and at once."""

    name: str
    subject: str
    n: int
    batch: int
    run: Run


def plain(name: str, attack: Attack, norm: str) -> Run:
    """The run of one attack, under one name."""
    return lambda piece: {name: piece.measured(attack, norm)}


def searches(attack: CarliniWagner, numbers: Sequence[int], names: Sequence[str]) -> Run:
    """CW with several numbers of searches, as one run with the largest: what was best after each."""

    def run(piece: Piece) -> dict[str, Outcome]:
        memory: dict[str, Tensor] = {}
        outcomes: dict[str, Outcome] = {}
        best, passes, seconds = np.full(len(piece.images), np.inf), np.zeros(len(piece.images), int), 0.0
        for before, number, name in zip((0, *numbers), numbers, names, strict=False):
            part = piece.measured(Continued(attack=attack, more=number - before, memory=memory), "l2")
            best, passes, seconds = np.minimum(best, part.distance), passes + part.passes, seconds + part.seconds
            outcomes[name] = Outcome(
                settings=repr(attack).replace(f"searches={attack.searches}", f"searches={number}") + piece.note,
                distance=best.tolist(), passes=[int(p) for p in passes], seconds=seconds,
            )  # fmt: skip
        return outcomes

    return run


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class Kept:
    """The folder that rows are kept in."""

    folder: Path

    def path(self, row: str) -> Path:
        return self.folder / f"{slug(row)}.json"

    def load(self, row: str) -> dict[str, Outcome]:
        path = self.path(row)
        if not path.exists():
            return {}
        return {name: Outcome(**outcome) for name, outcome in json.loads(path.read_text()).items()}

    def save(self, row: str, outcomes: dict[str, Outcome]) -> None:
        """Write the outcomes of a row atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(self.path(row)) as file:
            file.write(json.dumps({name: asdict(outcome) for name, outcome in outcomes.items()}).encode())

    def every(self, rows: Iterable[str]) -> dict[str, Outcome]:
        """All outcomes of these rows that there are, by their names."""
        return {name: outcome for row in rows for name, outcome in self.load(row).items()}


def finite(value: Any) -> float | None:
    """None where it is infinite: JSON has no infinity."""
    return float(value) if np.isfinite(value) else None


def done(outcomes: dict[str, Outcome]) -> int:
    """How many samples a row has been through."""
    return min((len(outcome.distance) for outcome in outcomes.values()), default=0)


def complete(
    row: Row, kept: Kept, model: nn.Module, images: Tensor, labels: Tensor, *,
    limit: float = float("inf"), tf32: bool = False, say: Callable[[str], None] = lambda line: None,
) -> bool:  # fmt: skip
    """Run a row from where it was left until its n, or until about ``limit`` seconds have passed; whether it ran."""
    outcomes, began = kept.load(row.name), time.perf_counter()
    n = min(row.n, len(images))
    before_this = done(outcomes)
    while (first := done(outcomes)) < n:
        here = slice(first, min(first + row.batch, n))

        def before(name: str) -> Outcome:
            found = kept.load(name)
            if name not in found:
                raise InputError(f"{row.name} needs the margins of {name}: run that row first")
            return found[name]

        piece = Piece(
            model=model, images=images[here], labels=labels[here], ids=list(range(n))[here], before=before, tf32=tf32
        )  # fmt: skip
        for name, outcome in row.run(piece).items():
            if name in outcomes:
                outcomes[name].add(outcome)
            else:
                outcomes[name] = outcome
        kept.save(row.name, outcomes)
        spent = time.perf_counter() - began
        say(f"{row.name}: {done(outcomes)} of {n}, {spent:.0f} s")
        if spent * (1 + row.batch / max(done(outcomes), 1)) > limit:  # the next piece would pass the limit
            break
    return done(outcomes) > before_this
