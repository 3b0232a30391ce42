"""Margins of every attack under every norm on the bundled networks: a refactoring must reproduce them.

    python benchmarks/fingerprint.py run [--name NAME] [--networks NAME …] [--samples N] [--jobs 2] [--device cuda]
    python benchmarks/fingerprint.py compare OLD.json NEW.json

A cell is one network, attack, norm and budget; it holds the margins of the first correctly classified samples with two
seeds. On a CPU each process uses one thread. On a GPU Race and MarginAttack run, as captured graphs. ``compare`` exits
with 1 unless, in each cell, 99 % of the margins agree to 1e-6 and the means to 0.01 % (CPU), or the means agree to
0.05 % (GPU), and no margin is lost. On a GPU torch's deterministic algorithms are switched on: without them two runs of
the same code differ by up to 6 % in the mean of a cell, on networks that mask their gradients.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, astuple, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import write

import marginattack as ma
from marginattack.attacks.pgd import FixedRadiusAttack
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

NETWORKS = {"mnist-cnn": 16, "mnist-cnn-adv": 16, "cifar10-resnet32": 4, "cifar10-resnet32-adv": 4}  # samples
BUDGETS, SEEDS = (100, 400), (0, 1)
ON_GPU, GPU_SAMPLES = ("race", "marginattack"), 128
EQUAL, EQUAL_SHARE = 1e-6, 0.99
MEAN_TOLERANCE = {"cpu": 1e-4, "cuda": 5e-4}


@dataclass(frozen=True)
class Cell:
    """What is measured at once."""

    network: str
    attack: str
    norm: str
    budget: int
    count: int
    device: str


def make_attack(name: str) -> ma.Attack:
    """An attack with its defaults; within 0.3 where it has no radius."""
    kind: Any = ma.ATTACKS[name]
    attack: ma.Attack = kind(eps=0.3) if issubclass(kind, FixedRadiusAttack) else kind()
    return attack


def measure(cell: Cell) -> dict[str, Any]:
    """The margins of one cell."""
    if cell.device == "cpu":
        torch.set_num_threads(1)
    else:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
    began = time.perf_counter()
    model = zoo(cell.network).to(cell.device)
    images, labels = samples(cell.network.split("-")[0])
    with torch.no_grad():
        correct = (model(images.to(cell.device)).argmax(1).cpu() == labels).nonzero()[: cell.count, 0]
    found = [
        ma.measure(
            model, images[correct], labels[correct], cell.norm, attack=make_attack(cell.attack), budget=cell.budget,
            seed=seed,
        )
        for seed in SEEDS
    ]  # fmt: skip
    distance = torch.cat([margins.distance for margins in found])
    print(*astuple(cell), f"{time.perf_counter() - began:.1f} s", flush=True)
    return {
        **asdict(cell),
        "distance": [None if np.isinf(value) else value for value in distance.tolist()],
        "passes": int(sum((margins.forwards + margins.backwards).sum() for margins in found)),
    }


def cells(networks: list[str], count: int | None, device: str) -> list[Cell]:
    """Everything that is measured, the slowest networks first."""
    chosen = [
        Cell(network, attack, norm, budget, count or (GPU_SAMPLES if device == "cuda" else NETWORKS[network]), device)
        for network, attack, budget in product(reversed(networks), ma.ATTACKS, reversed(BUDGETS))
        for norm in ma.ATTACKS[attack].norms
    ]
    return [cell for cell in chosen if device == "cpu" or cell.attack in ON_GPU]


def compare(old: Path, new: Path) -> int:
    """Print the cells that differ; how many they are."""
    before, after = (_cells(json.loads(path.read_text())["numbers"]) for path in (old, new))
    wrong = 0
    for key, cell in before.items():
        if key not in after:
            continue
        a, b = (np.array([np.inf if v is None else v for v in each["distance"]]) for each in (cell, after[key]))
        lost = int((np.isinf(b) & np.isfinite(a)).sum())
        both = np.isfinite(a) & np.isfinite(b)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            equal = float(((a == b) | (np.abs(a - b) <= EQUAL * np.abs(a))).mean())
        mean = b[both].mean() / a[both].mean() - 1 if both.any() and a[both].mean() > 0 else 0.0
        device = cell["device"]
        if lost or abs(mean) > MEAN_TOLERANCE[device] or (device == "cpu" and equal < EQUAL_SHARE):
            wrong += 1
            print(*key, f"equal {equal:.1%}, mean {mean:+.4%}, lost {lost}")
    missing = [key for key in before if key not in after]
    compared = len(before) - len(missing)
    print(f"{compared} cells compared, {wrong} differ, {len(missing)} not measured again")
    return wrong


def _cells(numbers: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(cell[field.name] for field in fields(Cell)): cell for cell in numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--name", help="of the record; fingerprint-DEVICE unless stated")
    run.add_argument("--networks", nargs="*", default=list(NETWORKS))
    run.add_argument("--samples", type=int)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    against = commands.add_parser("compare")
    against.add_argument("old", type=Path)
    against.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        sys.exit(1 if compare(options.old, options.new) else 0)
    todo = cells(options.networks, options.samples, options.device)
    if options.jobs == 1:
        numbers = [measure(cell) for cell in todo]
    else:
        with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=8) as pool:
            numbers = list(pool.imap(measure, todo, chunksize=1))
    write(options.name or f"fingerprint-{options.device}", numbers)


if __name__ == "__main__":
    main()
