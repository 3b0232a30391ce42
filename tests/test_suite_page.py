"""docs/benchmark-results.md agrees with the suite's records, and its counts are correct."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import further_results
import overall
import suite_page
from record import RECORDS

Excesses = dict[str, float]


def record(model: str, budgets: dict[int, Excesses], *, hardware: tuple[str, ...] = ("a GPU",)) -> dict[str, Any]:
    """A made-up record: optimality 1 − excess, the last row on the last hardware, curves from 3 to 0.5."""
    on = [
        {"command": "run", "date": "today", "hardware": each, "commit": "c", "python": "3", "torch": "2"}
        for each in hardware
    ]
    rest = {
        "success": 1.0,
        "cut": False,
        "forwards": 50.0,
        "backwards": 49.0,
        "on": 0,
        "anytime": {"excess": [3.0, 0.5]},
    }
    rows = [
        {"attack": name, "budget": budget, "excess": excess, "optimality": 1 - excess, **rest}
        for budget, excesses in budgets.items()
        for name, excess in excesses.items()
    ]
    rows[-1]["on"] = len(on) - 1
    return {
        "model": model, "norm": "l2", "n": 5, "on": on, "rows": rows, "failed": {},
        "pool": {"median": 1.0, "d_max": 2.0, "runs": len(rows)},
        "passes": {str(budget): [5, budget // 2] for budget in budgets},
    }  # fmt: skip


MADE_UP = [
    record("first", {100: {"race": 0.1, "advlib:x": 0.2, "lib:y": 0.4}, 400: {"race": 0.05, "lib:y": 0.5}}),
    record("second", {100: {"race": 0.3, "lib:y": 0.2, "ours": 0.5}}, hardware=("a GPU", "a CPU")),
    record("third", {100: {"race": 0.2, "lib:y": 0.6, "ours": 0.1}}),
    record("alone", {100: {"race": 0.9, "ours": 0.1}}),
]


def test_sections_of_further_records(tmp_path: Path) -> None:
    assert further_results.sections(tmp_path) == ""
    row = {"n": 8, "success": 1.0, "median": 1.5, "queries": 1990.0, "most": 2000, "seconds": 3.0}
    rows = [
        {"norm": norm, "attack": attack, "optimality": optimality, **row}
        for norm, attack, optimality in (("l2", "x", 0.9), ("l2", "race", 0.99), ("l1", "race", 0.8), ("l1", "x", 0.95))
    ]
    on = {"command": "run", "date": "today", "hardware": "a CPU", "commit": "c"}
    numbers = {"model": "m", "budget": 2000, "rows": rows}
    (tmp_path / "attackbench.json").write_text(json.dumps({"conditions": on, "numbers": numbers}))
    text = further_results.sections(tmp_path)
    assert "`race` has the highest local optimality in 1 of 2 norms" in text
    assert text.index("| l2 | race |") < text.index("| l2 | x |")
    assert text.endswith("`run`, today, a CPU, commit c\n")


def test_medians_and_the_difference_to_the_best_baseline_are_beside_the_means() -> None:
    each = record("first", {100: {"race": 0.1, "lib:y": 0.2}})
    each["rows"][0] |= {"n": 9, "excess_median": 0.01, "excess_trimmed": 0.05}
    each["rows"][0]["difference"] = {"to": "lib:y", "mean": -0.1, "low": -0.15, "high": 0.02}
    page = suite_page.page([each])
    assert "| first | 100 | 9 | **10.00%** | 1.00% | 5.00% | **0.9000** | 100.0% | lib:y |" in page
    assert "| [-15.00%, +2.00%] | 1 |" in page


@pytest.mark.parametrize("norm", overall.NORMS)
def test_the_figures_are_up_to_date_and_small(norm: str) -> None:
    svg = (suite_page.IMAGES / f"suite-{norm}.svg").read_text()
    points = overall.curves(overall.records(RECORDS), norm)
    assert suite_page.digest(points) in svg, "run python benchmarks/suite_page.py"
    assert all(point["model"] in svg for point in points)
    assert len(svg.encode()) < 150_000


def test_counts_and_means_by_hand() -> None:
    few, more = overall.summarise(MADE_UP)
    assert (few.budget, few.models, more.budget, more.models) == (100, 3, 400, 1)
    assert few.race == pytest.approx({"excess": 0.2, "optimality": 0.8})
    assert few.baseline is not None
    assert (few.baseline["attack"], few.baseline["excess"]) == (
        "lib:y",
        pytest.approx(0.4),
    )  # advlib:x ran on one model
    assert few.best == pytest.approx({"excess": 1 / 3, "optimality": 2 / 3})
    assert few.ratio == pytest.approx(0.6)
    assert (few.first, few.first_of_all) == ([2, 2], [1, 1])
    assert (more.ratio, more.ratio_with_shorter) == pytest.approx((0.1, 0.25))  # advlib:x found 0.2 with 100 passes
    assert overall.count_first(overall.cells(MADE_UP), "baselines", "shorter") == [3, 3]


def test_a_tie_counts_as_first() -> None:
    tied = [record("tied", {100: {"race": 0.2, "lib:y": 0.2}})]
    assert overall.summarise(tied)[0].first == [1, 1]


def test_the_page_lists_cells_that_are_lost_cut_or_mixed() -> None:
    page = suite_page.page(MADE_UP)
    assert (
        "Cells in which a baseline is better than `race`: 1 of 4.\n\n- second, ℓ2, 100 passes: excess 30.00% against"
        in page
    )
    assert "Cells in which another attack of ours is better than `race`: 1 of 4.\n\n- third, ℓ2, 100 passes" in page
    assert "in 3 of 4 cells" in page
    assert (
        "| second | 100 | — | 30.00% | — | — | 0.7000 | 100.0% | lib:y | 20.00% | — | — | 0.8000 | 100.0% | — | 1 |"
        " hardware differs |" in page
    )
    ours = "| third | 100 | — | **20.00%** | — | — | **0.8000** | 100.0% |"
    assert f"{ours} lib:y | 60.00% | — | — | 0.4000 | 100.0% | — | 1 |  |" in page
    assert "- ℓ2, 100 passes, 4 models: advlib:x 1, lib:y 3, ours 3" in page
    cut = record("cut", {100: {"race": 0.1, "lib:y": 0.2}})
    cut["rows"][1]["cut"] = True
    cut["failed"] = {"lib:z 100": "not installed"}
    page = suite_page.page([cut])
    assert "| 1 | cut: lib:y |" in page
    assert "lib:z 100 (cut, ℓ2): not installed" in page


def test_figures_show_the_longest_run_and_every_end() -> None:
    assert overall.figure_attacks([*MADE_UP, record("more", {400: {"race": 0.1, "a:y": 0.1}})], "l2") == ["race", "a:y"]
    points = [
        point for point in overall.curves(MADE_UP, "l2") if (point["model"], point["attack"]) == ("first", "race")
    ]
    assert [(point["passes"], point["excess"], point["end"]) for point in points] == [
        (200, 0.5, 0), (400, 0.05, 0), (100, 0.1, 1), (400, 0.05, 1),
    ]  # fmt: skip
