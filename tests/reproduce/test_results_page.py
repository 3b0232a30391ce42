"""docs/results.md has every experiment, and the records show what it says."""

import importlib
import json
from pathlib import Path

import pytest

from marginattack.reproduce import EXPERIMENTS, paper

ROOT = Path(__file__).parents[2]
RECORDS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "experiments/results").glob("*.json")}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_has_the_table_of_every_experiment(name: str) -> None:
    page = (ROOT / "docs/results.md").read_text()
    assert f"<!-- table: results_tables.{name} paper_{name} conditions_paper_{name} -->\n`" in page
    assert all(RECORDS[name]["conditions"][key] for key in ("command", "date", "hardware", "commit", "torch"))


def test_the_records_show_marginattack_above_cw_and_deepfool_on_mnist() -> None:
    rows = RECORDS["mnist"]["numbers"]["l2"]["rows"]
    for attack in ("DeepFool", "CW 3", "CW 5", "CW 10"):
        for name in ("MarginAttack", "MarginAttack, our defaults"):
            beside = rows[attack]["beside"][name]
            assert all(ours > theirs for ours, theirs in zip(beside["ours"], beside["theirs"], strict=True))


def test_leads_have_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    tables = importlib.import_module("results_tables")
    half = 1.96 * (11 - 10**2 / 102) ** 0.5 / 1.02  # 10.5 and 0.5 of 102
    assert tables.paired(10, 0, 100) == pytest.approx((10.0, 10 / 1.02 - half, 10 / 1.02 + half))
    assert tables.paired(3, 3, 100) == pytest.approx((0.0, -1.96 * 7**0.5 / 1.02, 1.96 * 7**0.5 / 1.02))
    # Wilson intervals 0.5923 to 0.7894 and 0.4905 to 0.7004, from which Newcombe's follows
    assert tables.unpaired(56, 48, 80) == pytest.approx((10.0, -4.721, 24.137), abs=1e-3)
    row = tables._lead_row("MNIST linf", "ours", "PGD", 100, [(10, 0), (0, 0)], tables.paired)
    assert row[-2:] == ("+10.0 [+3.7, +15.9] / +0.0 [-1.9, +1.9]", "1 of 2, 1 clearly")


def test_the_papers_tables_are_complete() -> None:
    for norm, table in paper.SUCCESS.items():
        for rates in table.values():
            for data, four in rates.items():
                assert len(four) == len(paper.LEVELS[norm][data]) == len(paper.QUANTILES)
    for data, seconds in paper.TABLE_4["MarginAttack"].items():
        slower = paper.TABLE_4["CW 5"][data]
        assert 2.9 < slower / seconds < 3.6
