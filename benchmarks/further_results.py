"""Further sections of docs/benchmark-results.md: cells measured apart, AutoAttack, AttackBench, exact margins.

Each is made of a record in benchmarks/records; suite_page.py writes them after its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attackbench_run
import autoattack
import exact
from doc_tables import exact_excess
from record import read

from marginattack.reproduce.markdown import table


def verdicts(numbers: Any) -> list[str]:
    """Robust accuracies by the default attack and by AutoAttack."""
    rows = numbers["rows"]
    made = sorted({
        f"{each['by']}: `{each['on']['command']}`, {each['on']['date']}, {each['on']['hardware']}, "
        f"commit {each['on']['commit']}" for each in numbers["verdicts"]
    })  # fmt: skip
    return [autoattack.summarise(rows), "", *autoattack.format_table(rows), "", *(f"- {each}" for each in made)]


def ranking(numbers: Any) -> list[str]:
    """Local optimality of the default attack and of AttackBench's, as AttackBench counts."""
    rows = sorted(numbers["rows"], key=lambda row: (row["norm"], -row["optimality"]))
    norms = sorted({row["norm"] for row in rows})
    first = [norm for norm in norms if next(row for row in rows if row["norm"] == norm)["attack"] == "race"]
    text = (
        f"{numbers['model']}, {numbers['budget']:,} queries, as AttackBench counts them: `race` has the highest local "
        f"optimality in {len(first)} of {len(norms)} norms."
    )
    return [text, "", *attackbench_run.format_table(rows)]


def apart(numbers: Any) -> list[str]:
    """Cells that were compared with each other alone."""
    lines = [
        "The rows of ImageNet above are of the oldest phases. These cells have the present ones, on a CPU, with every "
        "attack on the same samples; d_best is over the attacks of the table with the same norm.", "",
    ]  # fmt: skip
    rows = []
    for each in numbers:
        for row in each["rows"]:
            measures = (f"{row[name]:.2%}" for name in ("excess", "excess_median", "excess_trimmed"))
            on = each["on"][row["on"]]
            rows.append((
                each["model"], each["norm"], row["budget"], row["attack"], row["n"], *measures, f"{row['success']:.1%}",
                on["commit"], on["date"],
            ))  # fmt: skip
    header = ("model", "norm", "passes", "attack", "n", "mean excess", "median", "trimmed", "success", "commit", "date")
    return lines + table(header, rows)


def exact_margins(numbers: Any) -> list[str]:
    """Excess of the default attack over exact margins."""
    return [
        "Excess over the exact margins:", "", *exact.format_table(numbers["summary"]), "",
        "All digits together; the trimmed mean leaves out the tenth at either end:", "", *exact_excess(numbers),
    ]  # fmt: skip


SECTIONS: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "apart": ("ImageNet with the present phases", apart),
    "autoattack": ("AutoAttack's verdict", verdicts),
    "attackbench": ("Somebody else's counting", ranking),
    "exact": ("Exact margins", exact_margins),
}


def sections(folder: Path) -> str:
    """The sections of the records that exist."""
    parts = []
    for name, (title, make) in SECTIONS.items():
        if (folder / f"{name}.json").exists():
            made, numbers = read(folder / f"{name}.json")
            parts += [
                f"\n## {title}",
                "",
                *make(numbers),
                "",
                f"Record: [{name}.json](../benchmarks/records/{name}.json), {made}",
            ]
    return "\n".join(parts) + "\n" * bool(parts)
