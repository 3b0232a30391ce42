"""What a run costs besides its attack: memory and time against the number of samples, 3×32×32 synthetic images.

    python benchmarks/stream.py 10000:4 100000:4 2000:200

Each argument is a number of samples and the attack's moves: few moves show memory over many samples, the default 200
the share of time that is not the attack's. Each runs in a process of its own, with one thread. The attack's time is
what is spent inside ``Problem.solve``; everything else of the run (opening, diagnosis, reading, checking, writing,
reading back, probing) is overhead.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import record
import torch
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
    """Images in [0, 1) as float32, labelled by the network itself, written through a map so that memory stays small."""
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


def child(data: str, out: str, moves: str) -> None:
    """One run: seconds in all, seconds of the attack, peak memory."""
    from contextlib import nullcontext

    from marginattack.core.problem import Problem
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings

    torch.set_num_threads(1)
    inside, solve = [0.0], Problem.solve

    def timed(self: Problem, attack: object) -> None:
        began = time.process_time()
        solve(self, attack)  # type: ignore[arg-type]
        inside[0] += time.process_time() - began

    Problem.solve = timed  # type: ignore[method-assign]
    flags = {"model": f"{__file__}:network", "data": data, "attacks": ["marginattack"], "batch": 256}
    flags |= {"attack.marginattack.moves": int(moves)}
    wall, cpu = time.perf_counter(), time.process_time()
    run(read_settings(None, [], flags), out, progress=lambda what, n: nullcontext(lambda done: None), on_finding=print)
    seconds = time.process_time() - cpu
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    print(json.dumps({"seconds": seconds, "attack_seconds": inside[0], "wall_seconds": time.perf_counter() - wall,
                      "peak_mib": peak}))  # fmt: skip


def main(sizes: list[str]) -> None:
    rows = []
    for size in sizes:
        n, moves = map(int, size.split(":"))
        with tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder) / "data.npz", n)
            arguments = [sys.executable, __file__, "child", f"{folder}/data.npz", f"{folder}/run", str(moves)]
            printed = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = {"n": n, "moves": moves, **json.loads(printed.splitlines()[-1])}
        row["overhead"] = row["seconds"] / row["attack_seconds"] - 1
        rows.append(row)
        print(row, flush=True)
        record.write("stream", rows)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(*sys.argv[2:])
    else:
        main(sys.argv[1:])
