"""What a record carries besides its numbers: the command, the date, the hardware, the commit that made it."""

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RECORDS = Path(__file__).parent / "records"


class Counted(nn.Module):
    """A model that counts the passes it is asked for, batch by batch: an independent witness, for peers too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if images.requires_grad:
            images.register_hook(self._backward)
        logits: Tensor = self.model(images)
        return logits

    def _backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def conditions() -> dict[str, Any]:
    """Where and how this process runs."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hardware": f"{device}, {torch.get_num_threads()} CPU threads",
        "commit": commit,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def write(name: str, numbers: Any) -> None:
    """Save a record as JSON: under benchmarks/records, or under $OUT where that is set."""
    folder = Path(os.environ.get("OUT", RECORDS))
    folder.mkdir(parents=True, exist_ok=True)
    record = {"conditions": conditions(), "numbers": numbers}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
