"""The benchmark suite: what is run first, what is stored, what is pooled, and what the records say."""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import further_results
import suite
import suite_cells
import suite_results
from suite_cells import Cell, prepare

from marginattack.analysis import benchmarking as bench
from marginattack.analysis.benchmarking import Trial, grid
from marginattack.attacks.external import EXTERNAL_ATTACKS
from marginattack.attacks.external.base import ProblemInfo


def result(
    attack: str, distance: list[float], *, budget: int = 100, seed: int = 0, digest: str = "d"
) -> suite_results.Result:
    n = len(distance)
    trial = Trial(
        attack=f"{attack}()", budget=budget, distance=np.array(distance),
        curve=np.tile(np.array(distance)[:, None], (1, len(grid(budget)))), forwards=np.full(n, 60),
        backwards=np.full(n, 40), rejected=0, seconds=1.5,
    )  # fmt: skip
    on = {"command": "run", "date": "today", "hardware": "a CPU", "commit": "c", "python": "3", "torch": "2"}
    about = {
        "model": "mnist-gelu", "norm": "l2", "digest": digest, "attack": attack, "budget": budget, "seed": seed, "n": n,
        "settings": trial.attack, "rejected": 0, "seconds": 1.5, "cut": False, "on": on,
    }  # fmt: skip
    return suite_results.Result(about, trial)


def gather(*results: suite_results.Result) -> suite_results.Results:
    return {each.key: each for each in results}


SOME = gather(
    result("race", [1.0, 2.0, 3.0, 4.0]),
    result("advlib:x", [1.1, 2.0, 3.3, 4.4]),
    result("lib:y", [2.0, 4.0, 6.0, 8.0]),
    result("race", [1.0, 1.5], budget=2000),
    result("advlib:x", [1.0, 1.8], budget=2000),
)


def options(tmp_path: Path, *arguments: str) -> argparse.Namespace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["suite.py", "--work", str(tmp_path / "work"), "--out", str(tmp_path), *arguments])
        return suite.parse()


def test_what_matters_most_is_run_first(tmp_path: Path) -> None:
    tasks = suite.plan(options(tmp_path, "--models", "mnist-cnn", "mnist-gelu", "--norms", "l2", "--long"))
    names = [(task.cell.attack, task.cell.budget) for task in tasks]
    assert {task.cell.attack for task in tasks[:6]} == {"race"}
    assert [task.cell.budget for task in tasks[:6]] == [100, 100, 400, 400, 2000, 2000]
    assert names.index(("marginattack", 2000)) < names.index(("deepfool", 100))
    assert names[-2:] == [("best peer 1", 20_000), ("best peer 2", 20_000)] or tasks[-1].stage == 7
    seeds = {task.cell.seed for task in tasks if task.cell[:2] == ("race", 400)}
    assert seeds == {0, 1, 2}
    assert {task.cell.n for task in tasks if task.cell.budget == 2000} == {200}
    assert not any(name.startswith("autoattack:") for name, _ in names)


def test_the_longest_cells_of_a_stage_are_run_first(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--models", "mnist-cnn", "mnist-gelu", "--norms", "l2", "--budgets", "100")
    slow = {("mnist-gelu", "l2", "race", 400, 0): result("race", [1.0], budget=400)}
    assert [task.model for task in suite.plan(chosen)[:2]] == ["mnist-cnn", "mnist-gelu"]
    assert [task.model for task in suite.plan(chosen, slow)[:2]] == ["mnist-gelu", "mnist-cnn"]


def test_only_what_the_records_lack_is_run(tmp_path: Path) -> None:
    arguments = (
        "--models",
        "mnist-gelu",
        "--norms",
        "l2",
        "--samples",
        "3",
        "--budgets",
        "100",
        "--only",
        "race",
        "lbfgs",
    )
    chosen = options(tmp_path, *arguments)
    digest = prepare("mnist-gelu", (), (), 3).digest
    known = gather(*(result(name, [1.0, 2.0, 3.0], digest=digest) for name in ("race", "lbfgs")))

    def left(known: suite_results.Results, chosen: argparse.Namespace) -> set[str]:
        return {task.cell.attack for task in suite.missing(suite.plan(chosen), known, chosen)}

    assert left(known, chosen) == set()
    assert left(known, options(tmp_path, *arguments, "--rerun", "race")) == {"race"}
    assert left(gather(result("race", [1.0] * 3, digest="other")), chosen) == {"race", "lbfgs"}
    assert left(gather(result("race", [1.0] * 2, digest=digest)), chosen) == {"race", "lbfgs"}
    known["mnist-gelu", "l2", "lbfgs", 100, 0].about["cut"] = True
    assert left(known, chosen) == {"lbfgs"}


def test_distances_survive_the_parquet_files(tmp_path: Path) -> None:
    suite_results.write_parquet(tmp_path, SOME)
    again = suite_results.read_parquet(tmp_path)
    assert again.keys() == SOME.keys()
    for key, each in SOME.items():
        assert again[key].about == each.about
        np.testing.assert_allclose(again[key].trial.distance, each.trial.distance, rtol=1e-6)
        np.testing.assert_allclose(again[key].trial.curve, each.trial.curve, rtol=1e-6)
    table = pq.read_table(tmp_path / "suite.parquet")
    assert table.num_rows == sum(len(each.trial.distance) for each in SOME.values())
    assert {"model", "norm", "attack", "budget", "seed", "sample", "distance"} <= set(table.column_names)


def test_cells_that_are_run_again_stay_in_the_pool() -> None:
    first = suite_results.merge(SOME, gather(result("race", [1.2, 1.9, 3.0, 4.0])))
    twice = suite_results.merge(first, gather(result("race", [0.9, 2.5, 3.0, 4.0])))
    assert suite_results.pool(twice.values()).tolist() == [0.9, 1.5, 3.0, 4.0]
    assert twice["mnist-gelu", "l2", "race", 100, 0].trial.distance.tolist() == [0.9, 2.5, 3.0, 4.0]
    record = suite_results.make_record(list(twice.values()), {})
    assert "earlier runs" not in {row["attack"] for row in record["rows"]}
    runs = [gather(result("race", [distance, 9.0, 9.0, 9.0])) for distance in (0.7, 0.8)]
    both = suite_results.merge(twice, suite_results.merge(*runs))  # each side has a pool of its own
    assert suite_results.pool(both.values()).tolist() == [0.7, 1.5, 3.0, 4.0]
    other = suite_results.merge(SOME, gather(result("race", [9.0], digest="other")))
    assert suite_results.pool(other.values()).tolist() == [9.0]  # other samples: nothing is mixed


def test_the_record_states_means_over_seeds_and_the_difference_to_the_best_peer() -> None:
    seeds = gather(*(result("race", [1.0 + seed, 2.0, 3.0, 4.0], seed=seed) for seed in (1, 2)))
    record = suite_results.make_record(list((SOME | seeds).values()), {"lib:z-100-0": "no"})
    rows = {(row["attack"], row["budget"]): row for row in record["rows"]}
    race = rows["race", 100]
    assert race["seeds"] == pytest.approx([1 / 12, 1 / 12 + 0.25, 1 / 12 + 0.5])
    assert race["excess"] == pytest.approx(1 / 12 + 0.25)
    assert race["excess_median"] == pytest.approx(1 / 9)
    assert rows["race", 2000]["n"] == 2
    assert rows["race", 2000]["best"] == 1.0
    difference = race["difference"]
    assert difference["to"] == "advlib:x"
    assert difference["mean"] == pytest.approx(
        ((1.0 - 0.1) + 0 - 0.1 - 0.0) / 4
    )  # d_max is 4: no distance counts as more
    assert difference["low"] <= difference["mean"] <= difference["high"]
    assert (difference["won"], difference["lost"]) == (0.25, 0.25)
    assert record["failed"] == {"lib:z-100-0": "no"}
    assert record["n"] == 4


def test_cells_apart_are_pooled_alone_and_keep_their_distances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    suite_results.write_apart(gather(result("race", [1.1, 2.0, 9.0]), result("advlib:x", [1.0, 2.2, 9.0])))
    (record,) = json.loads((tmp_path / "apart.json").read_text())["numbers"]
    assert record["distances"] == {"race, 100": [1.1, 2.0, 9.0], "advlib:x, 100": [1.0, 2.2, 9.0]}
    race = next(line for line in further_results.sections(tmp_path).splitlines() if "| race |" in line)
    assert "| 100 | race | 3 | 3.33% | 0.00% | 3.33% |" in race


def test_long_runs_are_of_the_best_peers_one_library_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"advlib:x": 1.3, "other:x": 1.1, "lib:y": 1.2}
    more = gather(*(result(name, [distance, 1.5], budget=2000) for name, distance in peers.items()))
    monkeypatch.setattr(suite, "read_work", lambda work: SOME | more)
    tasks = [suite.Task(7, "mnist-gelu", "l2", Cell(f"best peer {rank}", 20_000, 0, 2)) for rank in (1, 2, 3)]
    cells = [suite.resolve(task, tmp_path) for task in tasks]
    assert [cell and cell.attack for cell in cells] == ["other:x", "lib:y", None]


def test_apgd_bisects_up_to_the_margins_of_the_data() -> None:
    apgd, info = EXTERNAL_ATTACKS["advlib:apgd"], ProblemInfo("linf", 400, 10, grayscale=True)
    assert replace(apgd, eps=0.07).settings(info)["max_eps"] == 0.07
    assert apgd.settings(info)["max_eps"] == 0.25


def test_a_cell_is_marked_if_the_time_was_over_also_where_most_of_it_went_by_before_the_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, cell = prepare("mnist-gelu", (), (), 3), Cell("race", 100, 0, 3)

    def start_slowly(*_: object, **__: object) -> Trial:
        time.sleep(0.1)
        return replace(result("race", [1.0, 2.0, 3.0]).trial, seconds=0.01)

    monkeypatch.setattr(bench, "run_trial", start_slowly)
    for limit, cut in ((0.05, True), (100.0, False)):
        suite_cells.run_cell(tmp_path, workload, "l2", cell, limit)
        about, _ = suite_cells.load(suite_cells.folder(tmp_path, workload, "l2") / cell.file)
        assert about["cut"] == cut


def test_a_cell_that_the_end_of_the_run_interrupts_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(tmp_path, "--models", "mnist-gelu", "--norms", "l2", "--samples", "3")
    trial, task = result("race", [1.0, 2.0, 3.0]).trial, suite.Task(0, "mnist-gelu", "l2", Cell("race", 100, 0, 3))
    monkeypatch.setattr(bench, "run_trial", lambda *_, **__: trial)
    assert suite.run_task(task, chosen, time.monotonic()).endswith("not done within the time limit")
    assert not list(tmp_path.rglob("*.npz"))
    assert "median" in suite.run_task(task, chosen, time.monotonic() + 100)
    assert len(list(tmp_path.rglob("*.npz"))) == 1


def test_a_run_resumes_and_failures_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: Any = options(tmp_path, "--models", "mnist-gelu", "--norms", "l2", "--samples", "3", "--budgets", "12")
    task, far = suite.Task(0, "mnist-gelu", "l2", Cell("race", 12, 0, 3)), float("inf")
    assert "race seed 0: median" in suite.run_task(task, chosen, far)
    assert suite.run_task(task, chosen, far) == ""
    broken = task._replace(cell=Cell("preset:nothing", 12, 0, 3))
    assert "failed: InputError" in suite.run_task(broken, chosen, far)
    assert suite.run_task(broken, chosen, far) == ""
    suite.finish(chosen)
    stored = suite_results.read_parquet(tmp_path)
    assert [key[2:] for key in stored] == [("race", 12, 0)]
    failed = suite_results.read_failures(tmp_path / "work")
    assert "no attack named" in failed["mnist-gelu", "l2"]["preset:nothing-12-0"]
