r"""What a release must reach on a GPU, each figure next to its bar, in about 10 minutes on one H200.

    PYTHONPATH=src:PACKAGES:benchmarks python benchmarks/bars.py [--only WORD …] [--limit 45]

PACKAGES has timm, adv-lib and foolbox. Each case is a process of its own: four networks of timm, each with 400 and with
2,000 passes (benchmarks/speed.py: the bare model, eager and as a graph, and attacks of other libraries in the same
rounds; five rounds, or as many as fit into ``--limit`` seconds); the first ``measure`` of a process; accuracy
(benchmarks/precision.py) is measured apart. The numbers of a case are kept in $OUT/parts, so that the same command
continues where it was interrupted; remove that folder to begin anew. The record is bars-DEVICE.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from record import DEVICE, RECORDS, write
from torch import Tensor, nn

BATCHES = {"cifar-resnet18": 256, "resnet50": 64, "vit-base": 64, "convnext-tiny": 64}
PASSES = (400, 2000)
ROUNDS = 5
CONTENDERS = ("bare plain float32", "bare graph", "adv-lib", "foolbox DDN", "race l2")
LIMIT = 45  # seconds of rounds per case: eight cases, their warm-ups and start-ups take about 10 minutes
COLD = "cold start"
OF_PEER, OF_BARE, COLD_SECONDS, OF_MEMORY = 0.6, 1.25, 1.5, 1.5  # the bars
PEERS = ("adv-lib DDN", "adv-lib FMN", "foolbox DDN")  # as they come


class Figure(NamedTuple):
    """A measured figure, and the most that it may be."""

    name: str
    value: float
    most: float


class Small(nn.Module):
    """A ResNet-20 for small images: three blocks each of 16, 32 and 64 channels, random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        widths = [16] * 4 + [32] * 3 + [64] * 3
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, b, 3, stride=b // a, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b),
            )
            for a, b in pairwise(widths)
        )  # fmt: skip
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for block in self.blocks:
            y = block(x)
            step = x.shape[2] // y.shape[2]
            shortcut = nn.functional.pad(x[:, :, ::step, ::step], (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))
            x = torch.relu(y + shortcut)
        logits: Tensor = self.last(x.mean((2, 3)))
        return logits


def cold_start(n: int = 128) -> dict[str, float]:
    """The seconds of the first and of the second ``measure`` in this process, which has imported torch."""
    import marginattack as ma

    torch.manual_seed(0)
    model, images = Small().to(DEVICE).eval(), torch.rand(n, 3, 32, 32, device=DEVICE)
    with torch.no_grad():
        labels = model(images).argmax(1)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        ma.measure(model, images, labels, diagnose=False)
        seconds.append(time.perf_counter() - began)
    return {"first": seconds[0], "second": seconds[1]}


def cases() -> list[str]:
    """All cases, those that take longest last."""
    return [COLD, *(f"{name}:{batch}:{passes}" for passes in PASSES for name, batch in BATCHES.items())]


def run_case(case: str, folder: Path, limit: float) -> Any:
    """The numbers of a case: as they were measured before, or from a process of its own."""
    part = folder / f"{case.replace(':', '-').replace(' ', '-')}.json"
    if not part.exists():
        if case == COLD:
            command = [__file__, "--cold-start"]
        else:
            name, batch, passes = case.split(":")
            command = [
                str(Path(__file__).with_name("speed.py")), "--cases", f"{name}:{batch}", "--passes", passes,
                "--peers-passes", "40", "--rounds", str(ROUNDS), "--limit", str(limit), "--warm-ups", "1",
                "--modes", "default", "--only", *CONTENDERS, "--record", part.stem,
            ]  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, *command], check=True, env={**os.environ, "OUT": str(folder)})
    return json.loads(part.read_text())["numbers"]


def figures(case: str, numbers: Any) -> Iterator[Figure]:
    """What a case says about the bars."""
    if case == COLD:
        yield Figure("first measure of 128 images on a ResNet-20, seconds", numbers["first"], COLD_SECONDS)
        return
    (found,) = numbers
    rows = {row["name"]: row for row in found["rows"]}
    ours = rows["race l2"]
    name = f"{found['model']}, {found['passes']} passes"
    peers = [_ratio(ours, rows[peer]) for peer in PEERS if peer in rows]
    if peers:
        yield Figure(f"{name}: time over that of the fastest other library", max(peers), OF_PEER)
    bare = [_ratio(ours, row) for each, row in rows.items() if each.startswith("bare graph bf16")]
    if bare and found["passes"] == PASSES[-1]:
        yield Figure(f"{name}: time over that of the bare model in bf16", max(bare), OF_BARE)
    if (plain := rows.get("bare plain float32")) is not None and plain["MiB"] and found["model"] == "vit-base":
        yield Figure(f"{name}: memory over that of the bare model", ours["MiB"] / plain["MiB"], OF_MEMORY)


def _ratio(row: dict[str, Any], other: dict[str, Any]) -> float:
    """The median over the rounds of their ratio."""
    return float(median(a / b for a, b in zip(row["rounds"], other["rounds"], strict=True)))


def main() -> None:
    """Run the cases that have no numbers yet, and print every figure next to its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS")
    parser.add_argument("--cold-start", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold_start:
        write(COLD.replace(" ", "-"), cold_start())
        return
    folder, results = Path(os.environ.get("OUT", RECORDS)) / "parts", []
    for case in cases():
        if not any(word in case for word in options.only):
            continue
        numbers = run_case(case, folder, options.limit)
        found = list(figures(case, numbers))
        results.append({"case": case, "numbers": numbers, "figures": [each._asdict() for each in found]})
        for each in found:
            verdict = "met" if each.value <= each.most else "missed"
            print(f"{each.name}: {each.value:.3g}, at most {each.most:g}: {verdict}", flush=True)
        write(f"bars-{DEVICE}", results)


if __name__ == "__main__":
    main()
