"""The overhead of a run: memory and time against the number of samples, for synthetic 3×32×32 images.

    python benchmarks/stream.py 10000:4 100000:4 2000:200
    python benchmarks/stream.py race 8192:100

Each argument is a number of samples and MarginAttack's number of moves: few moves show memory over many samples, the
default of 200 the overhead in time. After ``race`` it is a number of samples and the budget of Race, the default
attack, and the record is stream-race.json. Each runs in a process of its own with one thread. The attack's time is what
is spent in ``Problem.solve``; the rest of the run (opening, diagnosis, reading, verification, writing, reading back) is
overhead. ``overhead_per_shard`` is that of all shards but the first, as it is in a long run: without imports and what
happens once per run.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import peak_memory, run_child, write
from torch import Tensor, nn

SHAPE, SHARD = (3, 32, 32), 512


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


class Stopwatch:
    """CPU seconds inside a method, which it replaces; calls inside calls count once."""

    def __init__(self, owner: type, name: str) -> None:
        self.calls, self.depth, method = list[float](), 0, getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            self.depth, began = self.depth + 1, time.process_time()
            try:
                return method(*arguments)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.calls.append(time.process_time() - began)

        setattr(owner, name, timed)


def run_once(data: str, out: str, attack: str, number: str) -> dict[str, float | None]:
    """One run: seconds in total and of the attack, overhead, peak memory."""
    from contextlib import nullcontext

    from marginattack.core.problem import Problem
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings
    from marginattack.runs.shards import ShardRunner

    torch.set_num_threads(1)
    solve, measure, verify = (
        Stopwatch(Problem, "solve"),
        Stopwatch(ShardRunner, "measure"),
        Stopwatch(ShardRunner, "verify"),
    )
    flags = {"model": f"{__file__}:network", "data": data, "attacks": [attack], "shard": SHARD, "batch": SHARD // 2}
    flags |= {"budget" if attack == "race" else f"attack.{attack}.moves": int(number)}
    wall, cpu = time.perf_counter(), time.process_time()
    run(read_settings(None, [], flags), out, progress=lambda what, n: nullcontext(lambda done: None), on_finding=print)
    later = sum(solve.calls[2 : 2 * len(measure.calls)])  # two batches per shard; the last call is for the traces
    return {
        "seconds": time.process_time() - cpu, "attack_seconds": sum(solve.calls),
        "overhead_per_shard": (sum(measure.calls[1:]) + sum(verify.calls[1:])) / later - 1 if later else None,
        "wall_seconds": time.perf_counter() - wall, "peak_mib": peak_memory(),
    }  # fmt: skip


def main(attack: str, sizes: list[str]) -> None:
    """Run every size in a process of its own."""
    rows = []
    for size in sizes:
        n, number = map(int, size.split(":"))
        with tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder) / "data.npz", n)
            child = run_child(__file__, "child", f"{folder}/data.npz", f"{folder}/run", attack, number)
        row = {"n": n, "budget" if attack == "race" else "moves": number, **child}
        row["overhead"] = row["seconds"] / row["attack_seconds"] - 1
        rows.append(row)
        print(row, flush=True)
        write("stream-race" if attack == "race" else "stream", rows)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        print(json.dumps(run_once(*sys.argv[2:])))
    else:
        main("race" if "race" in sys.argv else "marginattack", [size for size in sys.argv[1:] if size != "race"])
