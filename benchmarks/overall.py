"""The suite's records as one table a norm and budget: means over the models.

    python benchmarks/overall.py [FOLDER]

An attack is ranked among those that ran on every model of its norm; the others follow, with the number of models.
"""

import json
import sys
from pathlib import Path
from typing import Any

from record import RECORDS

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


def main(folder: str = str(RECORDS)) -> None:
    found = records(Path(folder))
    cells = sorted({(each["norm"], row["budget"]) for each in found for row in each["rows"]})
    for norm, budget in cells:
        print(f"\n## {norm}, {budget:,} passes\n\n{table(overall(found, norm, budget))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
