"""The experiments by name: their rows, run in turn; what they found, written as JSON and as tables."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from marginattack.errors import InputError
from marginattack.reproduce import ablations, challenge, convergence, tables, timing
from marginattack.reproduce.rows import Kept, Outcome, Row, complete
from marginattack.reproduce.subjects import Subject, subject
from marginattack.storage.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Rows, and what is made of their outcomes; both know quick runs from full ones."""

    about: str
    subjects: tuple[str, ...]
    rows: Callable[[bool], list[Row]]
    summarise: Callable[[dict[str, Outcome], bool], dict[str, Any]]


def _table(data: str) -> Experiment:
    return Experiment(
        about=f"Tables 1 and 2: success under given norms, {data}", subjects=(data,),
        rows=lambda quick: tables.rows(data, quick=quick),
        summarise=lambda outcomes, quick: tables.summarise(data, outcomes, quick=quick),
    )  # fmt: skip


TIMED = ("mnist", "cifar10", "imagenet")

EXPERIMENTS: dict[str, Experiment] = {
    "mnist": _table("mnist"),
    "cifar10": _table("cifar10"),
    "imagenet": _table("imagenet"),
    "challenge": Experiment(
        about="Table 3: success at 0.3 on the network trained against it", subjects=("challenge",),
        rows=lambda quick: challenge.rows(quick=quick), summarise=lambda outcomes, quick: challenge.summarise(outcomes),
    ),
    "timing": Experiment(
        about="Table 4: seconds a batch", subjects=TIMED,
        rows=lambda quick: [row for data in TIMED for row in timing.rows(data, quick=quick)],
        summarise=lambda outcomes, quick: timing.summarise(outcomes),
    ),
    "convergence": Experiment(
        about="Figure 3: norm and constraint by move, margins by moves", subjects=("mnist", "cifar10"),
        rows=lambda quick: convergence.rows(quick=quick),
        summarise=lambda outcomes, quick: convergence.summarise(outcomes),
    ),
    "ablations": Experiment(
        about="What the paper asserts without showing it", subjects=("mnist",),
        rows=lambda quick: ablations.rows(quick=quick), summarise=lambda outcomes, quick: ablations.summarise(outcomes),
    ),
}  # fmt: skip


def reproduce(
    name: str, out: Path, *, quick: bool = False, data: Sequence[str] = (), device: str = "cpu",
    only: Sequence[str] = (), limit: float = float("inf"), tf32: bool = False, say: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """Run an experiment, or ``only`` the rows whose names begin so, each for about ``limit`` seconds; the record.

    Rows are kept under ``out``, and what is there is not run again. ``data`` are files, of any of the subjects: those
    that name a subject as NAME=FILE are for it, the others for all. With ``tf32`` a GPU searches in it; the settings of
    the rows that were found so say it.
    """
    if name not in EXPERIMENTS:
        raise InputError(f"cannot reproduce {name!r}: choose one of {', '.join(EXPERIMENTS)}")
    experiment, kept = EXPERIMENTS[name], Kept(out / f"{name}{'-quick' if quick else ''}")
    opened = {one: partial(subject, one, files_for(one, data), device) for one in experiment.subjects}
    at: dict[str, Subject] = {}
    rows = experiment.rows(quick)
    for row in rows:
        if only and not row.name.startswith(tuple(only)):
            continue
        if name == "timing" and row.subject == "imagenet" and not files_for("imagenet", data):
            continue  # the others can be timed on what is bundled
        if row.subject not in at:
            at[row.subject] = opened[row.subject]()
        where = at[row.subject]
        if complete(row, kept, where.model, where.images, where.labels, limit=limit, tf32=tf32, say=say):
            write(kept.folder / "conditions.json", conditions(name, device, quick, tf32))
    numbers = experiment.summarise(kept.every(row.name for row in rows), quick)
    record = {"conditions": json.loads((kept.folder / "conditions.json").read_text()), "numbers": numbers}
    write(out / f"{name}{'-quick' if quick else ''}.json", record)
    return record


def files_for(name: str, data: Sequence[str]) -> list[str]:
    """The files that are meant for this subject."""
    alike = "mnist" if name == "challenge" else name
    named = [file.partition("=") for file in data]
    return [file if equals else prefix for prefix, equals, file in named if not equals or prefix == alike]


def conditions(name: str, device: str, quick: bool, tf32: bool = False) -> dict[str, Any]:
    """Where, when and with what this was run."""
    processor = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    commit = os.environ.get("COMMIT") or _commit()
    return {
        "command": os.environ.get("COMMAND") or f"marginattack reproduce {name}{' --quick' if quick else ''}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hardware": processor if device.startswith("cuda") else f"{processor}, {torch.get_num_threads()} threads",
        "search": "tf32" if tf32 else "float32",
        "commit": commit,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _commit() -> str:
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
            cwd=Path(__file__).parent,
        )  # fmt: skip
    except OSError:
        return ""
    return told.stdout.strip()


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as file:
        file.write((json.dumps(record, indent=1) + "\n").encode())
