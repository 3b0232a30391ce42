r"""What a release must reach on a GPU, each figure next to its bar, in about 8 minutes on one H200.

    PYTHONPATH=src:PACKAGES:benchmarks python benchmarks/bars.py [--only WORD …] [--limit 45] [--resume RECORD]

PACKAGES has timm, adv-lib and foolbox. Each case is a process of its own: four networks of timm, with 400 and 2,000
passes (benchmarks/speed.py: the bare model, eager and as a graph, and attacks of other libraries in the same rounds;
five rounds, or as many as begin within ``--limit`` seconds); the first ``measure`` of a process, on a machine as it
comes and once Triton has compiled its kernels there. Accuracy (benchmarks/precision.py) is measured apart.

The record, bars-DEVICE, is written after each case. The numbers of a case are also kept in ``--parts`` (.cache/bars),
so that the same command continues where it was interrupted; remove that folder to begin anew. On another machine,
``--resume`` takes the cases of earlier records; of two with the same case, the later one. The new record has the name
of the first. ``--commit`` is the commit of cases that were recorded as dirty because they ran in a copied tree whose
repository was at another commit; what they recorded is kept as "stated". A case that fails does not stop the others.
Exit code 1: a bar was missed, or could not be measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from record import DEVICE, write
from torch import Tensor, nn

BATCHES = {"cifar-resnet18": 256, "resnet50": 64, "convnext-tiny": 64, "vit-base": 64}  # the longest last
PASSES = (400, 2000)
ROUNDS = 5
CONTENDERS = ("bare plain float32", "bare graph", "adv-lib", "foolbox DDN", "race l2")
PEERS_PASSES = 20
LIMIT = 45  # seconds after which no round of a case begins: with warm-ups and start-ups all take about 8 minutes
COLD = {  # cases, and what they measure; the first one compiles Triton's kernels where the machine has none
    "cold start": "first measure of 128 images on a ResNet-20, seconds",
    "cold start again": "the same in a second process, seconds",
}
OF_PEER, OF_BARE, COLD_SECONDS, OF_MEMORY = 0.6, 1.25, 1.5, 1.5  # the bars
PEERS = ("adv-lib DDN", "adv-lib FMN", "foolbox DDN")  # as they come


class Figure(NamedTuple):
    """A measured figure, and the most that it may be; NaN where it could not be measured."""

    name: str
    value: float
    most: float

    @property
    def verdict(self) -> str:
        """Whether the bar was met."""
        return "not measured" if isnan(self.value) else "met" if self.value <= self.most else "missed"


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
    """All cases."""
    return [*COLD, *(f"{name}:{batch}" for name, batch in BATCHES.items())]


def part_of(case: str, folder: Path) -> Path:
    """Where the numbers of a case are kept."""
    return folder / f"{case.replace(':', '-').replace(' ', '-')}.json"


def restore_parts(record: Path, folder: Path, commit: str | None = None) -> None:
    """Take the cases of an earlier record as measured; ``commit`` is that of a copy that could not tell it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads(record.read_text())
    for each, conditions in zip(found["numbers"], found["parts"], strict=True):
        if commit and conditions["commit"].endswith("-dirty"):
            conditions |= {"commit": commit, "stated": conditions["commit"]}
        part_of(each["case"], folder).write_text(json.dumps({"conditions": conditions, "numbers": each["numbers"]}))


def run_case(case: str, folder: Path, limit: float) -> dict[str, Any]:
    """The conditions and numbers of a case: as they were measured before, or from a process of its own."""
    part = part_of(case, folder)
    if not part.exists():
        if case in COLD:
            command = [__file__, "--cold-start", part.stem]
        else:
            command = [
                str(Path(__file__).with_name("speed.py")), "--cases", case, "--passes", *map(str, PASSES),
                "--peers-passes", str(PEERS_PASSES), "--rounds", str(ROUNDS), "--limit", str(limit), "--warm-ups", "1",
                "--modes", "default", "--only", *CONTENDERS, "--record", part.stem,
            ]  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, *command], check=True, env={**os.environ, "OUT": str(folder)})
    found: dict[str, Any] = json.loads(part.read_text())
    return found


def figures(case: str, numbers: Any) -> Iterator[Figure]:
    """What a case says about the bars."""
    if case in COLD:
        yield Figure(COLD[case], numbers["first"], COLD_SECONDS)
        return
    (found,) = numbers
    rows = {row["name"]: row for row in found["rows"]}
    ours = {f"{found['model']}, {passes} passes": rows[f"race l2, {passes} passes"] for passes in PASSES}
    for name, row in ours.items():
        peers = [_ratio(row, rows[peer]) for peer in PEERS if peer in rows]
        of_peer = max(peers) if len(peers) == len(PEERS) else nan  # without one of them, the fastest is not known
        yield Figure(f"{name}: time over that of the fastest other library", of_peer, OF_PEER)
    longest = list(ours)[-1]
    bare = [_ratio(ours[longest], row) for each, row in rows.items() if each.startswith("bare graph bf16")]
    yield Figure(f"{longest}: time over that of the bare model in bf16", max(bare, default=nan), OF_BARE)
    if found["model"] == "vit-base":
        plain = rows.get("bare plain float32", {}).get("MiB", 0)
        most = max(row["MiB"] for row in ours.values())  # the first run captures the graphs that the second replays
        yield Figure(f"{found['model']}: memory over that of the bare model", most / plain if plain else nan, OF_MEMORY)


def timed_cases(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases of a record in which passes were timed, as benchmarks/speed.py records them."""
    return [case for result in results if result["case"] not in COLD for case in result["numbers"]]


def _ratio(row: dict[str, Any], other: dict[str, Any]) -> float:
    """The median over the rounds of their ratio."""
    return float(median(a / b for a, b in zip(row["rounds"], other["rounds"], strict=True)))


def main() -> None:
    """Run the cases that have no numbers yet, and print every figure next to its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS")
    parser.add_argument("--parts", type=Path, default=Path(".cache/bars"), metavar="FOLDER")
    parser.add_argument("--resume", type=Path, nargs="+", default=[], metavar="RECORD")
    parser.add_argument("--commit", metavar="COMMIT", help="of resumed cases that say dirty")
    parser.add_argument("--cold-start", metavar="RECORD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold_start is not None:
        write(options.cold_start, cold_start())
        return
    for earlier in options.resume:
        restore_parts(earlier, options.parts, options.commit)
    results, parts, verdicts = [], [], []
    for case in cases():
        if not any(word in case for word in options.only):
            continue
        try:
            measured = run_case(case, options.parts.absolute(), options.limit)
        except subprocess.CalledProcessError as error:
            print(f"{case}: not measured, exit code {error.returncode}", flush=True)
            verdicts.append("not measured")
            continue
        found = list(figures(case, measured["numbers"]))
        figures_of_case = [{**each._asdict(), "value": None if isnan(each.value) else each.value} for each in found]
        results.append({"case": case, "numbers": measured["numbers"], "figures": figures_of_case})
        parts.append(measured["conditions"])
        for each in found:
            print(f"{each.name}: {each.value:.3g}, at most {each.most:g}: {each.verdict}", flush=True)
            verdicts.append(each.verdict)
        write(options.resume[0].stem if options.resume else f"bars-{DEVICE}", results, parts=parts)
    sys.exit(int(set(verdicts) != {"met"}))


if __name__ == "__main__":
    main()
