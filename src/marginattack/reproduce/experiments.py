"""The experiments by name; ``reproduce`` runs their rows and writes a summary as JSON."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from marginattack.errors import InputError, choose
from marginattack.reproduce import (
    ablations,
    challenge,
    convergence,
    followups,
    markdown,
    paper,
    readings,
    success_rates,
    timing,
)
from marginattack.reproduce.models_under_test import DATA_SETS, ModelUnderTest, load_model_under_test
from marginattack.reproduce.records import provenance, seal
from marginattack.reproduce.runner import Outcome, Row, load_outcomes, outcome_file, run_row, write_json
from marginattack.storage.files import make_folder


@dataclass(frozen=True)
class Experiment:
    """The rows of a table or figure, the summary of their outcomes, and that summary as lines of Markdown."""

    about: str
    rows: Callable[..., list[Row]]  # takes ``quick``
    summarise: Callable[[dict[str, Outcome]], dict[str, Any]]
    markdown: Callable[[dict[str, Any]], list[str]]


EXPERIMENTS: dict[str, Experiment] = {
    **{
        data: Experiment(
            f"Tables 1 and 2: success rates at given distances, {data}", partial(success_rates.rows, data),
            partial(success_rates.summarise, data), partial(markdown.success_rates, data),
        )
        for data in paper.UNIT
    },
    "challenge": Experiment(
        "Table 3: success rate at 0.3 on the network trained against it",
        challenge.rows, challenge.summarise, markdown.challenge,
    ),
    "timing": Experiment("Table 4: seconds per batch", timing.rows, timing.summarise, markdown.timing),
    "convergence": Experiment(
        "Figure 3: norm and constraint by move, margins by number of moves",
        convergence.rows, convergence.summarise, markdown.convergence,
    ),
    "readings": Experiment(
        "Tables 2 and 3 under each reading of the paper's ℓ∞ settings, compared with PGD",
        readings.rows, readings.summarise, markdown.readings,
    ),
    "ablations": Experiment(
        "What the paper asserts without evidence", ablations.rows, ablations.summarise, markdown.ablations
    ),
    "race": Experiment(
        "Race with the present code at the levels of Tables 1 and 2, MNIST",
        followups.race_rows, followups.summarise, followups.race_table,
    ),
    "losses": Experiment(
        "PGD of Table 3 with the CW loss of the challenge (hinge 50), and with the bare margin",
        followups.losses_rows, followups.summarise, followups.losses_table,
    ),
    "gap": Experiment(
        "The paper's settings for ℓ2 on CIFAR-10, each of them replaced by our default",
        followups.gap_rows, followups.summarise, followups.gap_table,
    ),
}  # fmt: skip


def reproduce(
    name: str, out: Path, *, quick: bool = False, data: Sequence[str] = (), device: str = "cpu",
    only: Sequence[str] = (), limit: float = float("inf"), tf32: bool = False, command: str = "",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """Run an experiment of the paper, or ``only`` rows with these prefixes; return its record.

    Outcomes of rows are kept in ``out`` and not run again. ``limit`` bounds the seconds per row. The record states the
    conditions of every process that measured a part; ``command`` is the command of this one. ``data`` are .npz files
    instead of the bundled samples: ``NAME=FILE`` for the data set NAME, others for all. With ``tf32`` a GPU searches in
    tf32, and the settings of the rows mention it.
    """
    if name not in EXPERIMENTS:
        raise InputError(f"cannot reproduce {name!r}: {choose(name, EXPERIMENTS)}")
    experiment, path = EXPERIMENTS[name], out / f"{name}{'-quick' if quick else ''}.json"
    folder, models = path.with_suffix(""), dict[str, ModelUnderTest]()
    rows = experiment.rows(quick=quick)
    measured = list[str]()
    for row in rows:
        files = files_for(row.model, data)
        if only and not row.name.startswith(tuple(only)):
            continue
        if name == "timing" and row.model == "imagenet" and not files:
            continue  # the others can be timed on the bundled samples
        if row.model not in models:
            models[row.model] = load_model_under_test(row.model, files, device)
        if run_row(row, folder, models[row.model], limit=limit, tf32=tf32, log=log):
            measured.append(row.name)
            part = _conditions(command, device, tf32) | {"rows": measured}
            write_json(folder / f"part-{part['start'].replace(':', '')}-{os.getpid()}.json", part)
    return summarise(name, folder, rows)


def summarise(name: str, folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Write the record of the outcomes in a folder next to it; its conditions are those of the last part."""
    outcomes = {k: v for row in rows for k, v in load_outcomes(folder, row.name).items()}
    parts = [json.loads(path.read_text()) for path in folder.glob("part-*.json")]
    if not parts:
        raise InputError(f"{folder} has no outcomes of {name}: run marginattack reproduce {name} first")
    parts.sort(key=lambda part: (part["end"], part["start"]))
    record = seal(parts[-1], EXPERIMENTS[name].summarise(outcomes), **({"parts": parts} if len(parts) > 1 else {}))
    write_json(folder.parent / f"{folder.name}.json", record)
    return record


def merge(name: str, out: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Merge rows that were measured in several folders into one record; of duplicates the longest row is kept."""
    if name not in EXPERIMENTS:
        raise InputError(f"cannot merge {name!r}: {choose(name, EXPERIMENTS)}")
    rows, target = EXPERIMENTS[name].rows(), out / name
    make_folder(target)
    for source in (folder / name for folder in folders):
        for row in rows:
            found, kept = load_outcomes(source, row.name), load_outcomes(target, row.name)
            if sum(len(each.distance) for each in found.values()) > sum(len(each.distance) for each in kept.values()):
                write_json(outcome_file(target, row.name), {key: asdict(each) for key, each in found.items()}, None)
        for part in source.glob("part-*.json"):
            write_json(target / part.name, json.loads(part.read_text()))
    return summarise(name, target, rows)


def files_for(name: str, data: Sequence[str]) -> list[str]:
    """The files for this model."""
    entries = [file.partition("=") for file in data]
    return [file if equals else prefix for prefix, equals, file in entries if not equals or prefix == DATA_SETS[name]]


def _conditions(command: str, device: str, tf32: bool) -> dict[str, Any]:
    command = command or shlex.join(["marginattack", *sys.argv[1:]])
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name() if device.startswith("cuda") else cpu
    return provenance(command, hardware) | {"search": "tf32" if tf32 else "float32"}
