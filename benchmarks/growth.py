r"""How time and memory of a measurement grow with the number of inputs, their size, the classes and the passes.

    PYTHONPATH=src:benchmarks python benchmarks/growth.py

Each point is a process of its own: `measure` with its default attack on random images and a small convolutional network
with random weights, in batches of up to 32. One quantity grows at a time; the slope is that of the logarithms over the
last two points, 1 for proportional growth. Seconds are those of the measurement without start-up; memory is the peak of
the process minus its use before the measurement. On a CPU: one thread, process time.
"""

import json
import math
import sys
import time
from typing import Any

import torch
from record import CUDA, DEVICE, peak_memory, run_child, write
from torch import Tensor, nn

import marginattack as ma

BATCH = 32
BASE = {"n": 8, "side": 32, "classes": 10, "passes": 50}
GROWTH = {
    "n": (8, 16, 32, 64, 128, 256),
    "side": (32, 64, 128, 256, 512, 1024),
    "classes": (10, 100, 1000, 21000),
    "passes": (50, 100, 200, 400, 800),
}
LABELS = {"n": "inputs", "side": "side of an image (3 channels)", "classes": "classes", "passes": "passes per input"}


class Small(nn.Module):
    """Two convolutions with a total stride of 4, average pooling, and a linear layer."""

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
    """The peak memory of this process in MiB: of the GPU, or else resident."""
    return torch.cuda.max_memory_allocated() / 2**20 if CUDA else peak_memory()


def measure_point(n: int, side: int, classes: int, passes: int) -> dict[str, float]:
    """One measurement."""
    torch.manual_seed(0)
    if not CUDA:
        torch.set_num_threads(1)
    clock = time.perf_counter if CUDA else time.process_time
    model = Small(classes).to(DEVICE).eval()
    images = torch.rand(n, 3, side, side)
    with torch.no_grad():
        labels = torch.cat([model(part.to(DEVICE)).argmax(1).cpu() for part in images.split(BATCH)])
    ma.measure(model, images[:2], labels[:2], budget=4, batch=BATCH)  # loads what is needed at first use
    before, began = memory(), clock()
    margins = ma.measure(model, images, labels, budget=passes, batch=BATCH)
    success = float(margins.success.double().mean())
    return {"seconds": clock() - began, "MiB": memory() - before, "success": success}


def main() -> None:
    """Measure every point and compute the slopes."""
    results: list[dict[str, Any]] = []
    for name, values in GROWTH.items():
        rows = []
        for value in values:
            rows.append({name: value, **run_child(__file__, json.dumps(BASE | {name: value}))})
            print(name, rows[-1], flush=True)
        (a, b) = rows[-2:]
        slopes = {
            key: math.log(max(b[key], 1e-9) / max(a[key], 1e-9)) / math.log(b[name] / a[name])
            for key in ("seconds", "MiB")
        }
        results.append({"grows": name, "what": LABELS[name], "base": BASE, "rows": rows, "slopes": slopes})
        write(f"growth-{DEVICE}", results)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_point(**json.loads(sys.argv[1]))))
    else:
        main()
