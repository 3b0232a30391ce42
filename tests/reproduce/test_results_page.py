"""docs/results.md agrees with experiments/results."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from marginattack.reproduce import EXPERIMENTS, paper

ROOT = Path(__file__).parents[2]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module("results_page")


def test_the_page_and_the_results_agree(generator: ModuleType) -> None:
    assert (ROOT / "docs/results.md").read_text() == generator.page(), "run python experiments/results_page.py"


def test_results_state_their_conditions(generator: ModuleType) -> None:
    records = generator.records()
    assert records.keys() <= EXPERIMENTS.keys()
    for record in records.values():
        assert all(record["conditions"][key] for key in ("command", "date", "hardware", "commit", "torch"))


def test_the_page_gives_a_title_and_a_text_to_every_experiment(generator: ModuleType) -> None:
    texts = importlib.import_module("results_text")
    assert texts.TITLES.keys() == texts.TEXT.keys() == EXPERIMENTS.keys()


def test_the_records_show_marginattack_above_cw_and_deepfool_on_mnist() -> None:
    rows = json.loads((ROOT / "experiments/results/mnist.json").read_text())["numbers"]["l2"]["rows"]
    for attack in ("DeepFool", "CW 3", "CW 5", "CW 10"):
        for name in ("MarginAttack", "MarginAttack, our defaults"):
            beside = rows[attack]["beside"][name]
            assert all(ours > theirs for ours, theirs in zip(beside["ours"], beside["theirs"], strict=True))


def test_the_papers_tables_are_complete() -> None:
    for norm, table in paper.SUCCESS.items():
        for rates in table.values():
            for data, four in rates.items():
                assert len(four) == len(paper.LEVELS[norm][data]) == len(paper.QUANTILES)
    for data, seconds in paper.TABLE_4["MarginAttack"].items():
        slower = paper.TABLE_4["CW 5"][data]
        assert 2.9 < slower / seconds < 3.6
