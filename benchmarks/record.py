"""What the benchmarks share: records with their conditions, correctly classified samples, child processes."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.reproduce.records import provenance, seal

RECORDS = Path(__file__).parent / "records"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


class CountingModel(nn.Module):
    """A model that counts its passes, independently of what an attack reports."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if images.requires_grad:
            images.register_hook(self._count_backward)
        logits: Tensor = self.model(images)
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@torch.no_grad()
def correct_samples(
    model: nn.Module, images: Tensor, labels: Tensor, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """The first samples that the model classifies correctly, on its device."""
    device = next(model.parameters()).device
    correct = torch.cat([model(part.to(device)).argmax(1).cpu() for part in images.split(64)]) == labels
    return images[correct][:count].to(device), labels[correct][:count].to(device)


def conditions(seed: int = 0) -> dict[str, Any]:
    """The command, commit, hardware, versions, seed, start and end of this process."""
    device = torch.cuda.get_device_name() if CUDA else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    hardware = f"{device}, {threads} CPU thread{'s' if threads > 1 else ''}"
    return provenance(shlex.join(["python", *sys.argv]), hardware, seed)


def write(name: str, numbers: Any, *, seed: int = 0, files: Sequence[Path] = (), parts: Sequence[Any] = ()) -> None:
    """Save a record as JSON in benchmarks/records, or in $OUT if that is set.

    ``files`` beside it are recorded with their digests; ``parts`` are the conditions of runs that were merged.
    """
    folder = Path(os.environ.get("OUT", RECORDS))
    folder.mkdir(parents=True, exist_ok=True)
    more: dict[str, Any] = {"files": {file.name: file_digest(file) for file in files}} if files else {}
    record = seal(conditions(seed), numbers, **more, **({"parts": list(parts)} if parts else {}))
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read(path: Path) -> tuple[str, Any]:
    """The conditions of a record in one line, and its numbers."""
    record = json.loads(path.read_text())
    c = record["conditions"]
    return f"`{c['command']}`, {c['date']}, {c['hardware']}, commit {c['commit']}", record["numbers"]


def round_numbers(value: Any, form: str) -> Any:
    """Nested numbers rounded by a format; None for infinity and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: round_numbers(entry, form) for key, entry in value.items()}
    if isinstance(value, list):
        return [round_numbers(entry, form) for entry in value]
    if isinstance(value, float):
        return float(f"{value:{form}}") if isfinite(value) else None
    return value


def run_child(*arguments: object) -> dict[str, Any]:
    """Run a Python script in a process of its own; returns the JSON object on its last line."""
    command = [sys.executable, *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    numbers: dict[str, Any] = json.loads(output.splitlines()[-1])
    return numbers


def peak_memory() -> float:
    """The largest resident set of this process so far, in MiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024
