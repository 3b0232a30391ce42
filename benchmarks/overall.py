"""The suite's records as one table per norm and budget, with means over the models; our default against the rest.

    python benchmarks/overall.py [FOLDER]

An attack is ranked among those that ran on every model of its norm; the others follow, with their number of models. A
baseline is an attack of another library, or MarginAttack with the paper's settings.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from record import RECORDS

from marginattack.reproduce.markdown import table

NORMS = {"l2": "ℓ2", "linf": "ℓ∞", "l1": "ℓ1", "l0": "ℓ0"}
OURS = "race"  # our default
FIGURE_BUDGET, FIGURE_BASELINES = 400, 5  # a figure shows our default and the best baselines at this budget
MEASURES = (("excess", 1, ".2%"), ("optimality", -1, ".4f"))  # name, the sign that makes lower better, format

Row = dict[str, Any]

HEADER = ("attack", "models", "optimality", "excess", "worst excess", "success", "first in", "passes")


def records(folder: Path) -> list[Row]:
    """The numbers of all (model, norm) pairs."""
    return [json.loads(path.read_text())["numbers"] for path in sorted(folder.glob("suite-*.json"))]


def mean_over_models(found: list[Row], norm: str, budget: int) -> list[Row]:
    """A row per attack, the best first; ``first`` counts the models on which nothing had less excess."""
    tables = [[row for row in each["rows"] if row["budget"] == budget] for each in found if each["norm"] == norm]
    attacks, first = defaultdict[str, list[Row]](list), Counter[str]()
    for rows in tables:
        for row in rows:
            attacks[row["attack"]].append(row)
            first[row["attack"]] += row["excess"] <= min(each["excess"] for each in rows)
    means = [
        {
            "attack": name,
            "models": len(rows),
            **{key: sum(row[key] for row in rows) / len(rows) for key in ("optimality", "excess", "success")},
            "worst": max(row["excess"] for row in rows),
            "first": first[name],
            "passes": sum(row["forwards"] + row["backwards"] for row in rows) / len(rows),
        }
        for name, rows in attacks.items()
    ]
    return sorted(means, key=lambda row: (-row["models"], row["excess"], row["attack"]))


def format_table(rows: list[Row]) -> list[str]:
    """The rows in Markdown."""
    cells = [
        (
            row["attack"], row["models"], f"{row['optimality']:.4f}", f"{row['excess']:.2%}", f"{row['worst']:.2%}",
            f"{row['success']:.1%}", row["first"], f"{row['passes']:,.0f}",
        )
        for row in rows
    ]  # fmt: skip
    return table(HEADER, cells)


class Cell(NamedTuple):
    """The rows of one model, norm and budget."""

    model: str
    norm: str
    budget: int
    race: Row
    baselines: list[Row]
    own: list[Row]  # our other attacks
    shorter: list[Row]  # the baselines with smaller budgets: a run need not spend all of its own
    mixed_hardware: bool

    def better(self, key: str, sign: int, others: Sequence[Row]) -> Row | None:
        """The best of the others, if it is better than ours by a measure."""
        best = min(others, key=lambda row: sign * row[key], default=None)
        return best if best and sign * best[key] < sign * self.race[key] else None

    @property
    def name(self) -> str:
        return f"{self.model}, {NORMS[self.norm]}, {self.budget:,} passes"


def is_baseline(row: Row) -> bool:
    """Whether the attack is an external one or a preset."""
    return ":" in row["attack"]


def cells(found: list[Row]) -> list[Cell]:
    """All cells in which our default and a baseline ran, by norm, budget and model."""
    result = []
    for each in found:
        for budget in sorted({row["budget"] for row in each["rows"]}):
            rows = [row for row in each["rows"] if row["budget"] == budget]
            race = next((row for row in rows if row["attack"] == OURS), None)
            baselines = [row for row in rows if is_baseline(row)]
            if race and baselines:
                own = [row for row in rows if row is not race and not is_baseline(row)]
                mixed = len({each["on"][row["on"]]["hardware"] for row in rows}) > 1
                shorter = [row for row in each["rows"] if is_baseline(row) and row["budget"] < budget]
                result.append(Cell(each["model"], each["norm"], budget, race, baselines, own, shorter, mixed))
    return sorted(result, key=lambda cell: (list(NORMS).index(cell.norm), cell.budget, cell.model))


class Summary(NamedTuple):
    """One norm and budget over its models."""

    norm: str
    budget: int
    models: int
    race: Row  # means of ours
    baseline: Row | None  # the best on average among the baselines that ran on every model
    best: Row  # means of the best baseline of each cell
    ratio: float  # of our excess to theirs
    ratio_with_shorter: float  # the same, with the baselines' shorter runs
    first: list[int]  # cells with the least excess, and with the highest optimality, among the baselines
    first_of_all: list[int]  # and among all attacks


def count_first(here: Sequence[Cell], *others: str) -> list[int]:
    """In how many cells none of these others is better, by each measure."""
    return [
        sum(not cell.better(key, sign, [row for kind in others for row in getattr(cell, kind)]) for cell in here)
        for key, sign, _ in MEASURES
    ]


def summarise(found: list[Row]) -> list[Summary]:
    """The means over the models, for each norm and budget."""
    groups = defaultdict(list)
    for cell in cells(found):
        groups[cell.norm, cell.budget].append(cell)
    rows = []
    for (norm, budget), here in groups.items():
        there = [each for each in found if each["model"] in {cell.model for cell in here}]
        means = mean_over_models(there, norm, budget)
        everywhere = [row for row in means if is_baseline(row) and row["models"] == len(here)]
        race = {key: mean(cell.race[key] for cell in here) for key, _, _ in MEASURES}
        best = {
            key: mean(sign * min(sign * row[key] for row in cell.baselines) for cell in here)
            for key, sign, _ in MEASURES
        }
        with_shorter = mean(min(row["excess"] for row in cell.baselines + cell.shorter) for cell in here)
        ratios = race["excess"] / best["excess"], race["excess"] / with_shorter
        first = count_first(here, "baselines"), count_first(here, "baselines", "own")
        baseline = everywhere[0] if everywhere else None
        rows.append(Summary(norm, budget, len(here), race, baseline, best, *ratios, *first))
    return rows


def figure_attacks(found: list[Row], norm: str) -> list[str]:
    """The attacks of a figure: ours, then the best baselines, those on the most models first."""
    names = [row["attack"] for row in mean_over_models(found, norm, FIGURE_BUDGET) if is_baseline(row)]
    best_library = {name.partition(":")[2]: name for name in reversed(names)}  # of each attack
    return [OURS, *[name for name in names if name in best_library.values()][:FIGURE_BASELINES]]


def curves(found: list[Row], norm: str) -> list[Row]:
    """The data of a figure: the course of the longest run of each attack, and where each of its runs ended."""
    points = []
    for each in (each for each in found if each["norm"] == norm):
        for name in reversed(figure_attacks(found, norm)):  # ours is drawn last
            runs = sorted((row for row in each["rows"] if row["attack"] == name), key=lambda row: row["budget"])
            for run in runs[-1:]:
                grid = each["passes"][str(run["budget"])]
                points += [(each["model"], name, *at, 0) for at in zip(grid, run["anytime"]["excess"], strict=True)]
                points.append((each["model"], name, run["budget"], run["excess"], 0))
            points += [(each["model"], name, run["budget"], run["excess"], 1) for run in runs]
    keys = ("model", "attack", "passes", "excess", "end")
    return [dict(zip(keys, point, strict=True)) for point in points if point[2] >= 10 and point[3]]  # the axes are log


def main(folder: str = str(RECORDS)) -> None:
    """Print a table per norm and budget."""
    found = records(Path(folder))
    for norm, budget in sorted({(each["norm"], row["budget"]) for each in found for row in each["rows"]}):
        print(
            "\n".join(["", f"## {norm}, {budget:,} passes", "", *format_table(mean_over_models(found, norm, budget))])
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
