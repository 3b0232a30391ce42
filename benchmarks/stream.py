"""The overhead of a run: memory and time against the number of samples, for synthetic 3×32×32 images.

    python benchmarks/stream.py 10000:4 100000:4 2000:200

Each argument is a number of samples and the attack's number of moves: few moves show memory over many samples, the
default of 200 the overhead in time. Each runs in a process of its own with one thread. The attack's time is what is
spent in ``Problem.solve``; the rest of the run (opening, diagnosis, reading, verification, writing, reading back) is
overhead.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from record import peak_memory, run_child, write
from torch import Tensor, nn

SHAPE = (3, 32, 32)


class Network(nn.Module):
    """Two convolutions and a linear layer, with fixed random weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 25, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def network() -> nn.Module:
    return Network().eval()


def make_data(path: Path, n: int) -> None:
    """Random uint8 images with the network's own labels, written through a memory map."""
    random, model = np.random.default_rng(0), network()
    images = np.lib.format.open_memmap(path.with_suffix(".x.npy"), mode="w+", dtype=np.uint8, shape=(n, *SHAPE))
    labels = np.zeros(n, dtype=np.int64)
    for first in range(0, n, 1000):
        images[first : first + 1000] = random.integers(0, 256, (min(1000, n - first), *SHAPE), dtype=np.uint8)
        with torch.no_grad():
            part = torch.from_numpy(np.array(images[first : first + 1000])).float() / 255
            labels[first : first + 1000] = model(part).argmax(1).numpy()
    np.savez(path, x=images, y=labels)
    path.with_suffix(".x.npy").unlink()


def run_once(data: str, out: str, moves: str) -> dict[str, float]:
    """One run: seconds in total, seconds of the attack, peak memory."""
    from contextlib import nullcontext

    from marginattack.core.problem import Problem
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings

    torch.set_num_threads(1)
    attack_seconds, solve = [0.0], Problem.solve

    def timed_solve(self: Problem, attack: object) -> None:
        began = time.process_time()
        solve(self, attack)  # type: ignore[arg-type]
        attack_seconds[0] += time.process_time() - began

    Problem.solve = timed_solve  # type: ignore[method-assign]
    flags = {"model": f"{__file__}:network", "data": data, "attacks": ["marginattack"], "batch": 256}
    flags |= {"attack.marginattack.moves": int(moves)}
    wall, cpu = time.perf_counter(), time.process_time()
    run(read_settings(None, [], flags), out, progress=lambda what, n: nullcontext(lambda done: None), on_finding=print)
    return {
        "seconds": time.process_time() - cpu, "attack_seconds": attack_seconds[0],
        "wall_seconds": time.perf_counter() - wall, "peak_mib": peak_memory(),
    }  # fmt: skip


def main(sizes: list[str]) -> None:
    """Run every size in a process of its own."""
    rows = []
    for size in sizes:
        n, moves = map(int, size.split(":"))
        with tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder) / "data.npz", n)
            row = {"n": n, "moves": moves, **run_child(__file__, "child", f"{folder}/data.npz", f"{folder}/run", moves)}
        row["overhead"] = row["seconds"] / row["attack_seconds"] - 1
        rows.append(row)
        print(row, flush=True)
        write("stream", rows)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        print(json.dumps(run_once(*sys.argv[2:])))
    else:
        main(sys.argv[1:])
