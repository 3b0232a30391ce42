"""How well Race chooses the profile of a sample, on the networks that it is tuned on.

    python experiments/train/tuning_networks.py FOLDER --mnist mnist.npz --cifar10 CIFAR10
    PYTHONPATH=src:benchmarks:experiments/train python benchmarks/profiles.py FOLDER --mnist mnist.npz --cifar10 FILE

Every sample is attacked with the phases of each profile in turn. Its best margin among these is what a perfect choice
would find; ``loss`` is the mean of log(margin / best): of Race, which chooses by two gradients, and of each profile for
all samples. Test images from number 9,000 on. Writes records/profiles.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import doc_tables
import numpy as np
import torch
from record import correct_samples, round_numbers, write
from tuning_networks import NETWORKS, load

import marginattack as ma
from marginattack.attacks.race.phases import CURVED, MASKED, NEAR_LINEAR
from marginattack.core.norms import as_norm
from marginattack.execution.session import open_session
from marginattack.reproduce.models_under_test import read_npz

FIRST = 9000  # test image
LARGEST = 1e6  # distance, for a sample without one


def measure(
    name: str, data: tuple[torch.Tensor, torch.Tensor], folder: Path, norm: str, options: Any
) -> dict[str, Any]:
    """One network in one norm: what Race loses by its choice, and what each profile loses."""
    model = load(folder, name)
    images, labels = correct_samples(model, data[0][FIRST:], data[1][FIRST:], options.samples)
    with open_session(ma.Classifier(model)) as session:
        problem = session.problem(session.validate(images, labels), as_norm(norm), budget=options.budget)
        near_linear, masked = ma.Race().classify(problem, options.budget)
    profiles = {"NEAR_LINEAR": NEAR_LINEAR, "CURVED": CURVED, "MASKED": MASKED}
    attacks = {"Race": ma.Race()} | {
        key: replace(ma.Race(), near_linear=each, curved=each, masked=each) for key, each in profiles.items()
    }
    logs = {
        key: np.log(np.minimum(ma.measure(
            model, images, labels, norm, attack=attack, budget=options.budget, diagnose=False
        ).distance.numpy().astype(float), LARGEST))
        for key, attack in attacks.items()
    }  # fmt: skip
    best = np.min([logs[key] for key in profiles], axis=0)
    losses = {key: each - best for key, each in logs.items()}
    return {
        "network": name, "norm": norm, "n": len(labels), "budget": options.budget,
        "near-linear": float(near_linear.double().mean()), "masked": float(masked.double().mean()),
        "loss": {key: float(each.mean()) for key, each in losses.items()},
        "standard error": float(losses["Race"].std(ddof=1) / np.sqrt(len(labels))),
    }  # fmt: skip


def main() -> None:
    """Measure all networks in ℓ∞, ℓ2 and ℓ1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mnist", required=True)
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--budget", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = {"mnist": read_npz([options.mnist]), "cifar10": read_npz([options.cifar10])}
    rows = []
    for name in NETWORKS:
        for norm in ("linf", "l2", "l1"):
            rows.append(measure(name, data[name.split("-")[0]], options.folder, norm, options))
            print(doc_tables.profiles(rows)[-1], flush=True)
    write("profiles", round_numbers(rows, ".4g"))


if __name__ == "__main__":
    main()
