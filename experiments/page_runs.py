"""Measure the runs that experiments/page_check.py and experiments/screenshots.py open.

python experiments/page_runs.py FOLDER [--photographs A.npz B.npz --classes NAMES.txt]

Writes the run folders digits, plain and trained (one data set, two models), table, tones (sounds) and bounded into
FOLDER; with --photographs also photographs: the first 300 images (uint8, x, y and ids) as files, with
EfficientNet-Lite0. A run that is finished is left as it is.
"""

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
HERE = f"{Path(__file__).resolve()}"
PHOTOGRAPHS = 300
RATE, LENGTH = 8_000, 400  # samples per second of a sound, and its samples
PITCHES = {"low": 300.0, "middle": 440.0, "high": 620.0}  # Hz
COLUMNS = ("age", "income", "debt ratio", "accounts", "years employed", "late payments")
LOW, HIGH = torch.tensor([18.0, 5_000, 0, 0, 0, 0]), torch.tensor([90.0, 120_000, 1, 10, 40, 12])

CIFAR10 = "--data samples:cifar10 --norm l2 --norm linf --budget 60"
RUNS = {
    "digits": "--model zoo:mnist-cnn --data samples:mnist --limit 200 --norm l2 --norm linf",
    "plain": f"--model zoo:cifar10-resnet32 {CIFAR10}",
    "trained": f"--model zoo:cifar10-resnet32-adv {CIFAR10}",
    "table": f"--model {HERE}:scorer --data applicants.csv --norm l1 --norm linf --budget 100 --fixed age --bounds "
    "age=18:100,income=0:200000,debt_ratio=0:1,accounts=0:20,years_employed=0:60,late_payments=0:20 "
    "--scale age=12,income=20000,debt_ratio=0.2,accounts=2,years_employed=8,late_payments=3",
    "tones": f"--model {HERE}:listener --data tones.npz --bounds=-1,1 --norm l2 --budget 100 --classes pitches.txt",
    "bounded": "--model zoo:mnist-cnn --data samples:mnist --limit 40 --norm linf --budget 100 --bound crown",
    "photographs": "--model marginattack.reproduce.models_under_test:load_efficientnet --data photos "
    "--labels labels.csv --classes imagenet.txt --norm l2 --budget 60",
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photographs", nargs="*", default=[])
    parser.add_argument("--classes", type=Path)
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    write_applicants(folder)
    write_tones(folder)
    if options.photographs:
        write_photographs(folder, options.photographs)
        (folder / "imagenet.txt").write_text(options.classes.read_text())
    for name, words in RUNS.items():
        if name == "photographs" and not options.photographs:
            continue
        command = ["marginattack", "measure", *shlex.split(words), "--out", name]
        print(shlex.join(command), flush=True)
        subprocess.run([sys.executable, "-m", *command, "--quiet"], cwd=folder, check=True)


def write_photographs(folder: Path, files: Sequence[str]) -> None:
    """Write the images of .npz files as PNG files, and a file of their labels."""
    from PIL import Image

    (folder / "photos").mkdir(exist_ok=True)
    rows: list[tuple[str, int]] = []
    for file in files:
        with np.load(file) as arrays:
            for pixels, label, name in zip(arrays["x"], arrays["y"], arrays["ids"], strict=True):
                if len(rows) < PHOTOGRAPHS:
                    rows.append((f"{name}.png", int(label)))
                    Image.fromarray(pixels).save(folder / "photos" / rows[-1][0])
    with (folder / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("file", "label"), *rows])


def make_applicants(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random applicants, and whether a rule of thumb grants them a loan."""
    rows = LOW + (HIGH - LOW) * torch.rand(n, len(COLUMNS), generator=torch.Generator().manual_seed(seed))
    score = rows[:, 1] / 60_000 - 2 * rows[:, 2] + rows[:, 4] / 30 - rows[:, 5] / 8
    return rows, (score > 0).long()


def write_applicants(folder: Path) -> None:
    rows, labels = make_applicants(200, seed=2)
    names = [name.replace(" ", "_") for name in COLUMNS]
    with (folder / "applicants.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow([*names, "label"])
        table.writerows(
            [[*row, ("denied", "granted")[label]] for row, label in zip(rows.tolist(), labels, strict=True)]
        )


def scorer() -> nn.Module:
    """A small network that decides on applicants."""
    torch.manual_seed(0)
    network = nn.Sequential(Standardise(), nn.Linear(len(COLUMNS), 24), nn.ReLU(), nn.Linear(24, 2))
    return train(network, *make_applicants(1_000, seed=1))


class Standardise(nn.Module):
    """Each feature from -1 to 1."""

    def forward(self, rows: Tensor) -> Tensor:
        return 2 * (rows - LOW) / (HIGH - LOW) - 1


def make_tones(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy tones of three pitches with an overtone, and their numbers."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(PITCHES), (n,), generator=draw)
    pitch = torch.tensor(list(PITCHES.values()))[labels] * (1 + 0.06 * torch.randn(n, generator=draw))
    phase, time = 6.28 * torch.rand(n, 1, generator=draw), torch.arange(LENGTH) / RATE
    angle = 6.2832 * pitch[:, None] * time + phase
    sound = 0.5 * torch.sin(angle) + 0.2 * torch.sin(2 * angle) + 0.05 * torch.randn(n, LENGTH, generator=draw)
    return sound.clamp(-1, 1)[:, None], labels


def write_tones(folder: Path) -> None:
    sounds, labels = make_tones(120, seed=2)
    np.savez(folder / "tones.npz", x=sounds.numpy(), y=labels.numpy())
    (folder / "pitches.txt").write_text("\n".join(PITCHES) + "\n")


def listener() -> nn.Module:
    """A small convolutional network that tells tones apart."""
    torch.manual_seed(0)
    layers = [nn.Conv1d(1, 12, 33, stride=4), nn.ReLU(), nn.Conv1d(12, 16, 9, stride=2), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, len(PITCHES)))
    return train(network, *make_tones(600, seed=1))


def train(network: nn.Module, inputs: Tensor, labels: Tensor) -> nn.Module:
    """Train for some hundred steps on all inputs."""
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return network.eval()


if __name__ == "__main__":
    main(sys.argv[1:])
