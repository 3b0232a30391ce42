"""The suite's records as one table a norm and budget: means over the models; and our default against the rest.

    python benchmarks/overall.py [FOLDER]

An attack is ranked among those that ran on every model of its norm; the others follow, with the number of models.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from record import RECORDS

NORMS = {"l2": "ℓ2", "linf": "ℓ∞", "l1": "ℓ1"}
OURS = "race"  # our default
AT, MOST = 400, 5  # a figure shows our default and the MOST best peers at AT passes
MEASURES = (("excess", 1, ".2%"), ("optimality", -1, ".4f"))  # name, the sign that makes less better, format

Row = dict[str, Any]

HEAD = ("attack", "models", "optimality", "excess", "worst excess", "success", "first in", "passes")


def records(folder: Path) -> list[dict[str, Any]]:
    """The numbers of every (model, norm)."""
    return [json.loads(path.read_text())["numbers"] for path in sorted(folder.glob("suite-*.json"))]


def overall(found: list[dict[str, Any]], norm: str, budget: int) -> list[dict[str, Any]]:
    """A row an attack, the best first; ``first`` counts the models on which nothing had less excess."""
    tables = [[row for row in each["rows"] if row["budget"] == budget] for each in found if each["norm"] == norm]
    tables = [table for table in tables if table]
    rows = []
    for name in {row["attack"] for table in tables for row in table}:
        own = [next((row for row in table if row["attack"] == name), None) for table in tables]
        here = [row for row in own if row is not None]
        least = [min(row["excess"] for row in table) for table in tables]
        rows.append(
            {
                "attack": name,
                "models": len(here),
                **{key: sum(row[key] for row in here) / len(here) for key in ("optimality", "excess", "success")},
                "worst": max(row["excess"] for row in here),
                "first": sum(row is not None and row["excess"] <= low for row, low in zip(own, least, strict=True)),
                "passes": sum(row["forwards"] + row["backwards"] for row in here) / len(here),
            }
        )
    return sorted(rows, key=lambda row: (-row["models"], row["excess"], row["attack"]))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    for row in rows:
        cells = (
            row["attack"], str(row["models"]), f"{row['optimality']:.4f}", f"{row['excess']:.2%}",
            f"{row['worst']:.2%}", f"{row['success']:.1%}", str(row["first"]), f"{row['passes']:,.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class Cell(NamedTuple):
    """What ran on a model under a norm with a budget."""

    model: str
    norm: str
    budget: int
    race: Row
    peers: list[Row]
    own: list[Row]  # our other attacks
    shorter: list[Row]  # the peers with smaller budgets: who has more passes may leave some
    mixed: bool  # rows from different hardware

    def ahead(self, key: str, sign: int, rivals: Sequence[Row]) -> Row | None:
        """The best rival, where it is better than ours by a measure."""
        best = min(rivals, key=lambda row: sign * row[key], default=None)
        return best if best and sign * best[key] < sign * self.race[key] else None

    @property
    def name(self) -> str:
        return f"{self.model}, {NORMS[self.norm]}, {self.budget:,} passes"


def is_peer(name: str) -> bool:
    return ":" in name


def cells(found: list[Row]) -> list[Cell]:
    """Every cell in which our default and a peer ran, by norm, budget and model."""
    every = []
    for each in found:
        for budget in sorted({row["budget"] for row in each["rows"]}):
            rows = [row for row in each["rows"] if row["budget"] == budget]
            race = next((row for row in rows if row["attack"] == OURS), None)
            peers = [row for row in rows if is_peer(row["attack"])]
            if race and peers:
                own = [row for row in rows if row is not race and row not in peers]
                mixed = len({each["on"][row["on"]]["hardware"] for row in rows}) > 1
                shorter = [row for row in each["rows"] if is_peer(row["attack"]) and row["budget"] < budget]
                every.append(Cell(each["model"], each["norm"], budget, race, peers, own, shorter, mixed))
    return sorted(every, key=lambda cell: (list(NORMS).index(cell.norm), cell.budget, cell.model))


class Sum(NamedTuple):
    """A norm and budget over its models."""

    norm: str
    budget: int
    models: int
    race: Row  # means of ours
    peer: Row | None  # the best on average among the peers that ran on every model
    best: Row  # means of the best peer of each cell
    ratio: float  # of ours to these, in excess
    ratio_within: float  # the same, with the peers' shorter runs
    first: list[int]  # cells with the least excess, with the highest optimality, among the peers
    first_of_all: list[int]


def firsts(here: Sequence[Cell], *rivals: str) -> list[int]:
    """In how many cells nobody of these rivals is ahead, by each measure."""
    return [
        sum(not cell.ahead(key, sign, [row for who in rivals for row in getattr(cell, who)]) for cell in here)
        for key, sign, _ in MEASURES
    ]


def sums(found: list[Row]) -> list[Sum]:
    """The means over the models, a norm and budget each."""
    groups = defaultdict(list)
    for cell in cells(found):
        groups[cell.norm, cell.budget].append(cell)
    rows = []
    for (norm, budget), here in groups.items():
        there = [each for each in found if each["model"] in {cell.model for cell in here}]
        ran = [row for row in overall(there, norm, budget) if is_peer(row["attack"]) and row["models"] == len(here)]
        race = {key: mean(cell.race[key] for cell in here) for key, _, _ in MEASURES}
        best = {
            key: mean(sign * min(sign * row[key] for row in cell.peers) for cell in here) for key, sign, _ in MEASURES
        }
        within = mean(min(row["excess"] for row in cell.peers + cell.shorter) for cell in here)
        peer, ratios = ran[0] if ran else None, (race["excess"] / best["excess"], race["excess"] / within)
        wins = firsts(here, "peers"), firsts(here, "peers", "own")
        rows.append(Sum(norm, budget, len(here), race, peer, best, *ratios, *wins))
    return rows


def figured(found: list[Row], norm: str) -> list[str]:
    """The attacks of a figure: ours, then the best peers at AT passes, of those on the most models first."""
    names = [row["attack"] for row in overall(found, norm, AT) if is_peer(row["attack"])]
    one_a_kind = {name.partition(":")[2]: name for name in reversed(names)}  # of several libraries the best
    return [OURS, *[name for name in names if name in one_a_kind.values()][:MOST]]


def curves(found: list[Row], norm: str) -> list[Row]:
    """What a figure shows: the course of the longest run of each attack, and where each of its runs ended."""
    points = []
    for each in (each for each in found if each["norm"] == norm):
        for name in reversed(figured(found, norm)):  # ours is drawn last
            runs = sorted((row for row in each["rows"] if row["attack"] == name), key=lambda row: row["budget"])
            for run in runs[-1:]:
                grid = each["passes"][str(run["budget"])]
                points += [(each["model"], name, *at, 0) for at in zip(grid, run["anytime"]["excess"], strict=True)]
                points.append((each["model"], name, run["budget"], run["excess"], 0))
            points += [(each["model"], name, run["budget"], run["excess"], 1) for run in runs]
    keys = ("model", "attack", "passes", "excess", "end")
    return [dict(zip(keys, point, strict=True)) for point in points if point[2] >= 10 and point[3]]  # the axes are log


def main(folder: str = str(RECORDS)) -> None:
    found = records(Path(folder))
    cells = sorted({(each["norm"], row["budget"]) for each in found for row in each["rows"]})
    for norm, budget in cells:
        print(f"\n## {norm}, {budget:,} passes\n\n{table(overall(found, norm, budget))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
