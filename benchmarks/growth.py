r"""How time and memory of a measurement grow: with the inputs, their size, the classes and the passes.

    PYTHONPATH=src:benchmarks python benchmarks/growth.py

Each point is a process of its own: `measure` with its default attack on random images and a small convolutional network
with random weights, in batches of up to 32. From point to point one thing grows; the slope is that of the logarithms
over the last two points: 1 means in proportion. Seconds are those of the measurement alone, without starting up; memory
is the most that the process had, less what it had before. On a CPU: one thread and process time.
"""

import json
import math
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from record import write
from torch import Tensor, nn

import marginattack as ma

CUDA = torch.cuda.is_available()
BATCH = 32
BASE = {"n": 8, "side": 32, "classes": 10, "passes": 50}
GROWTH = {
    "n": (8, 16, 32, 64, 128, 256),
    "side": (32, 64, 128, 256, 512),
    "classes": (10, 100, 1000, 21000),
    "passes": (50, 100, 200, 400, 800),
}
WHAT = {"n": "inputs", "side": "side of an image (3 channels)", "classes": "classes", "passes": "passes an input"}


class Small(nn.Module):
    """Two convolutions with stride 4 in all, an average, and a layer of as many logits as asked for."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.last = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.features(images))
        return logits


def memory() -> float:
    """MiB that this process has had at most."""
    if CUDA:
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def point(n: int, side: int, classes: int, passes: int) -> dict[str, float]:
    """One measurement."""
    torch.manual_seed(0)
    if not CUDA:
        torch.set_num_threads(1)
    clock = time.perf_counter if CUDA else time.process_time
    model = Small(classes).to("cuda" if CUDA else "cpu").eval()
    images = torch.rand(n, 3, side, side)
    with torch.no_grad():
        labels = torch.cat(
            [model(part.to(next(model.parameters()).device)).argmax(1).cpu() for part in images.split(BATCH)]
        )
    ma.measure(model, images[:2], labels[:2], budget=4, batch=BATCH)  # what is loaded at first use
    before, began = memory(), clock()
    margins = ma.measure(model, images, labels, budget=passes, batch=BATCH)
    return {
        "seconds": clock() - began, "MiB": memory() - before, "success": float(margins.success.double().mean())
    }  # fmt: skip


def main() -> None:
    """Every point, and the slopes."""
    found: list[dict[str, Any]] = []
    for name, values in GROWTH.items():
        rows = []
        for value in values:
            asked = json.dumps(BASE | {name: value})
            done = subprocess.run([sys.executable, __file__, asked], capture_output=True, text=True, check=True)
            rows.append({name: value, **json.loads(done.stdout.splitlines()[-1])})
            print(name, rows[-1], flush=True)
        (a, b) = rows[-2:]
        slopes = {
            what: math.log(max(b[what], 1e-9) / max(a[what], 1e-9)) / math.log(b[name] / a[name])
            for what in ("seconds", "MiB")
        }
        found.append({"grows": name, "what": WHAT[name], "base": BASE, "rows": rows, "slopes": slopes})
        write(f"growth-{'cuda' if CUDA else 'cpu'}", found)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(point(**json.loads(sys.argv[1]))))
    else:
        main()
