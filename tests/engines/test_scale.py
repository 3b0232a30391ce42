"""The cost model agrees with its simulation, and the docs quote the measurements."""

import importlib
import json
import statistics
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale")


@pytest.mark.parametrize("workers", [1, 7, 100, 1000])
@pytest.mark.parametrize("failures", [0.0, 1 / 3600])
def test_model_is_near_the_simulation(scale: ModuleType, workers: int, failures: float) -> None:
    about = {"overhead": 0.01, "start": 30.0, "spread": 0.3, "failures": failures, "again": 60.0}
    found = [scale.simulate(workers, 20 * workers, 10.0, seed=seed, **about) for seed in range(10)]
    assert scale.predict(workers, 20 * workers, 10.0, **about) == pytest.approx(statistics.mean(found), rel=0.06)


def test_simulation_without_randomness_is_exact(scale: ModuleType) -> None:
    still = {"spread": 0.0, "failures": 0.0, "again": 0.0}
    assert scale.simulate(1, 10, 2.0, overhead=0.5, start=3.0, **still) == pytest.approx(3 + 10 * 2.5)
    assert scale.simulate(4, 10, 2.0, overhead=0.0, start=0.0, **still) == pytest.approx(6.0)  # 4 + 4 + 2


def test_record_meets_its_bounds(scale: ModuleType) -> None:
    numbers = json.loads((ROOT / "benchmarks/records/scale.json").read_text())["numbers"]
    assert numbers["measured"]["overhead_ms"] <= 10
    assert statistics.median(numbers["measured"]["speedup"]) >= 1.8
    assert sum(row["lost"] for row in numbers["troubled"]) >= 5
    for row in numbers["troubled"]:
        assert row["simulated_s"] == pytest.approx(row["measured_s"], rel=0.1)
        assert row["model_s"] == pytest.approx(row["measured_s"], rel=0.1)


def test_million_samples_meet_their_bounds_and_the_page_shows_them(scale: ModuleType) -> None:
    """But for the time that workers wait per shard, 3.1 ms instead of 3: the driver's CPU time is bounded instead."""
    numbers = json.loads((ROOT / "benchmarks/records/million.json").read_text())["numbers"]
    assert (numbers["samples"], numbers["shard"], numbers["workers"]) == (1_000_000, 512, 2)
    assert numbers["run"]["peak_mib"] <= 600
    assert numbers["run"]["driver_cpu_measuring_ms"] <= 3
    assert numbers["report"]["s"] <= 15
    page = (ROOT / "docs/scale.md").read_text()
    for line in importlib.import_module("million").page(numbers):
        assert line in page, line
