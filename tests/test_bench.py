"""The benchmark: its measures against hand-computed numbers, a small suite, and the command."""

import json
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from external_stub import external_stub
from models import inputs, smooth
from torch import Tensor
from typer.testing import CliRunner

import marginattack as ma
from marginattack.analysis import benchmarking as bench
from marginattack.attacks.external import EXTERNAL_ATTACKS
from marginattack.attacks.external.problem_module import ProblemModule
from marginattack.cli import bench as cli_bench
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.execution.session import open_session

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import networks
import overall
import suite
import suite_cells

INF = float("inf")


# The measures


def test_area_under_robust_accuracy() -> None:
    # Robust accuracy is 1 up to 1, 3/4 up to 2, 1/2 up to 4; nothing was found for the last sample.
    assert bench.robust_accuracy_area(np.array([1.0, 2.0, 4.0, INF]), 4.0) == pytest.approx(1 + 0.75 + 2 * 0.5)
    assert bench.robust_accuracy_area(np.array([1.0, 2.0, 4.0, INF]), 4.0, accuracy=0.5) == pytest.approx(2.75 / 2)


def test_local_optimality_by_hand() -> None:
    best = np.array([1.0, 3.0])  # d_max 3, area 2, room 1
    assert bench.local_optimality(best, best) == 1.0
    assert bench.local_optimality(np.array([INF, INF]), best) == pytest.approx(0.0)
    assert bench.local_optimality(np.array([1.5, 3.0]), best) == pytest.approx(0.75)
    assert bench.local_optimality(np.array([1.5, 9.0]), best) == pytest.approx(0.75)  # beyond d_max counts as d_max
    with_errors = bench.local_optimality(np.array([1.5, 3.0]), best, accuracy=0.8)
    assert with_errors == pytest.approx(1 - 0.8 * 0.25 / (0.8 * 3 - 0.8 * 2))


def test_local_optimality_where_all_margins_are_equal() -> None:
    assert bench.local_optimality(np.array([2.0, 2.0]), np.array([2.0, 2.0])) == 1.0


def test_mean_excess_by_hand() -> None:
    best = np.array([1.0, 2.0, 4.0, INF])
    assert bench.mean_excess(best, best) == 0.0
    assert bench.mean_excess(np.array([1.1, 2.0, 4.0, INF]), best) == pytest.approx(0.1 / 3)
    # a miss counts as d_max = 4: twice the best distance of one sample, and that of the other
    assert bench.mean_excess(np.array([1.0, INF, INF, INF]), best) == pytest.approx(1 / 3)


def test_best_distances_are_over_all_trials() -> None:
    trials = [trial_of([1.0, INF, 3.0]), trial_of([2.0, 5.0, 2.5], budget=100)]
    assert bench.best_distances(trials).tolist() == [1.0, 5.0, 2.5]
    rows = bench.table({"a": trials[:1], "b": trials[1:]})
    assert [row[:2] for row in rows] == [("a", "10"), ("b", "100")]
    # d_max 5: ((1 - 1) + (5/5 - 1) + (3/2.5 - 1)) / 3, and (1 + 0 + 0) / 3
    assert [row[3] for row in rows] == ["6.67%", "33.33%"]
    assert [row[5] for row in rows] == ["–", "3.167"]  # no mean where a sample was not fooled


def trial_of(distance: list[float], budget: int = 10) -> bench.Trial:
    passes = np.full(len(distance), budget)
    curve = np.repeat(np.array(distance)[:, None], len(bench.grid(budget)), axis=1)
    return bench.Trial(
        attack="", budget=budget, distance=np.array(distance), curve=curve, forwards=passes, backwards=0 * passes,
        rejected=0, seconds=0.0,
    )  # fmt: skip


def test_trial_agrees_with_measure_and_its_curve_ends_there() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    attack = ma.MarginAttack(moves=20)
    with open_session(Classifier(model)) as session:
        trial = bench.run_trial(session, session.validate(x, y), L2, attack, budget=100, batch=7)
    measured = ma.measure(model, x, y, "l2", attack=attack, budget=100, batch=7)
    np.testing.assert_allclose(trial.distance, measured.distance.numpy())
    assert (trial.forwards + trial.backwards == (measured.forwards + measured.backwards).numpy()).all()
    assert trial.curve.shape == (20, len(bench.grid(100)))
    assert (trial.curve[:, 1:] <= trial.curve[:, :-1]).all()
    assert (trial.curve[:, -1] >= trial.distance * (1 - 1e-6)).all()


# The suite


def test_the_suite_runs_our_attacks_the_presets_and_all_external_ones() -> None:
    names = suite.attack_names("l2", "mnist")
    assert {"marginattack", "deepfool", "cw", "lbfgs", "search", "preset:mnist-l2"} <= set(names)
    external = {name for name, attack in EXTERNAL_ATTACKS.items() if "l2" in attack.supported_norms}
    assert {name for name in external if not EXTERNAL_ATTACKS[name].why_unavailable()} - set(names) <= {
        name for name in external if EXTERNAL_ATTACKS[name].eps is not None
    }
    assert "foolbox:ddn" in names
    assert not {"pgd", "bim", "daa", "boundary", "jsma"} & set(names)
    assert "boundary" in suite.attack_names("l2", "mnist", optional=True)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_accuracy_of_the_networks_of_the_suite(name: str, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    with torch.no_grad():
        assert (networks.network(name)(images).argmax(1) == labels).double().mean() > 0.95


def test_winners_take_all_keeps_the_largest() -> None:
    kept = networks.WinnersTakeAll(0.5)(torch.tensor([[[1.0, -2.0], [3.0, 0.5]]]))
    assert kept.tolist() == [[[1.0, 0.0], [3.0, 0.0]]]


def test_small_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A record, a second run that repeats nothing, and the reasons of attacks that fail."""
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(suite, "RECORDS", tmp_path)

    def broken(module: ProblemModule) -> Tensor:
        module(module.images)
        raise AssertionError("not today")

    unavailable = replace(external_stub(broken), load=lambda: import_module("no_such_library"))
    for name in list(EXTERNAL_ATTACKS):
        monkeypatch.delitem(EXTERNAL_ATTACKS, name)
    monkeypatch.setitem(EXTERNAL_ATTACKS, "stub:broken", external_stub(broken))
    monkeypatch.setitem(EXTERNAL_ATTACKS, "stub:unavailable", unavailable)
    command = ["suite.py", "--models", "mnist-gelu", "--norms", "l2", "--budgets", "20", "--samples", "5"]
    command += ["--only", "marginattack", "deepfool", "stub", "--work", str(tmp_path / "raw")]
    monkeypatch.setattr(sys, "argv", command)
    suite.main()
    record = json.loads((tmp_path / "suite-mnist-gelu-l2.json").read_text())
    numbers = record["numbers"]
    assert [row["budget"] for row in numbers["rows"]] == [20, 20]
    assert {row["attack"] for row in numbers["rows"]} == {"marginattack", "deepfool"}
    assert all(row["most"] <= 20 for row in numbers["rows"])
    assert min(row["excess"] for row in numbers["rows"]) >= 0
    assert numbers["failed"] == {"stub:broken-20-0": "AssertionError: not today"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*.npz")}
    suite.main()
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*.npz")}
    assert len(before) == 2
    assert "| 20 | marginattack |" in capsys.readouterr().out


def test_the_time_limit_keeps_the_points_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    good = ma.measure(model, x, y, "l2").adversarial

    def endless(module: ProblemModule) -> Tensor:
        module(good)
        time.sleep(60)
        return module.images

    monkeypatch.setitem(EXTERNAL_ATTACKS, "stub:endless", external_stub(endless))
    workload = suite_cells.Workload(suite_cells.SuiteModel("made", lambda: model), Classifier(model), x, y, "")
    found = suite_cells.run_cell(tmp_path, workload, "l2", suite_cells.Cell("stub:endless", 50, 0, 20), limit=0.5)
    assert np.isfinite(found.distance).all()
    assert 0.4 <= found.seconds < 20


def test_means_over_models_by_hand() -> None:
    def numbers(norm: str, *excesses: tuple[str, float]) -> dict[str, object]:
        rest = {"budget": 100, "optimality": 0.5, "success": 1.0, "forwards": 50.0, "backwards": 49.0}
        return {"norm": norm, "rows": [{"attack": name, "excess": excess, **rest} for name, excess in excesses]}

    found = [numbers("l2", ("a", 0.1), ("b", 0.2)), numbers("l2", ("a", 0.4), ("b", 0.1), ("c", 0.0)), numbers("l1")]
    rows = overall.mean_over_models(found, "l2", 100)
    assert [(row["attack"], row["models"], row["first"]) for row in rows] == [("b", 2, 0), ("a", 2, 1), ("c", 1, 1)]
    assert rows[0]["excess"] == pytest.approx(0.15)
    assert rows[1]["worst"] == 0.4
    assert "| b | 2 | 0.5000 | 15.00% | 20.00% | 100.0% | 0 | 99 |" in overall.format_table(rows)


# The command


def command(*words: str) -> tuple[int, str, str]:
    import typer

    app = typer.Typer()
    app.command()(cli_bench.bench)
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_command_compares_attacks() -> None:
    words = ["--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--budget", "20", "--limit", "4"]
    words += ["--attack", "marginattack", "--attack", "fgsm"]
    code, out, _ = command(*words, "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["attack"] for row in rows] == ["marginattack", "fgsm"]
    assert all(row["most"] <= 20 for row in rows)
    code, out, _ = command(*words)
    assert code == 0
    assert "4 samples of samples:mnist" in out
    assert "optimality: AttackBench's local optimality; 1 is best." in out


def test_command_runs_attacks_of_autoattack() -> None:
    pytest.importorskip("pyautoattack")
    words = ["--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--budget", "24", "--limit", "3", "--json"]
    code, out, _ = command(
        *words, "--norm", "linf", "--peer", "autoattack:apgd-ce@0.3", "--peer", "autoattack:square@0.3"
    )
    assert code == 0
    rows = json.loads(out)
    assert [row["attack"] for row in rows] == ["autoattack:apgd-ce@0.3", "autoattack:square@0.3"]
    assert all("eps=0.3" in row["settings"] for row in rows)
    assert all(row["most"] <= 24 for row in rows)
    assert rows[0]["success"] == 1.0


def test_command_runs_our_attacks_within_a_radius() -> None:
    words = ["--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--budget", "24", "--limit", "3", "--json"]
    code, out, _ = command(*words, "--norm", "linf", "--attack", "apgd@3/10", "--attack", "square@0.3")
    assert code == 0
    rows = json.loads(out)
    assert [row["attack"] for row in rows] == ["apgd@3/10", "square@0.3"]
    assert all("eps=0.3" in row["settings"] for row in rows)
    assert rows[0]["success"] == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no model given: pass --model"),
        (["--attack", "magic"], "no attack named 'magic'"),
        (["--peer", "advlib:magic"], "no attack named 'advlib:magic'"),
        (["--attack", "preset:mnist-l1"], "no attack named 'preset:mnist-l1': did you mean preset:mnist-l"),
        (["--attack", "square"], "Square has no radius: give its name with one, NAME@8/255, or Square(eps=8/255)"),
        (["--attack", "race@0.3"], "race minimises the distance: omit the radius, as in race"),
        (["--attack", "square@0"], "square needs a radius above 0, as in square@0.3"),
        (["--budget", "0"], "--limit and --budget must be at least 1"),
        (["--norm", "l7"], "no norm named 'l7'"),
    ],
)
def test_errors_of_the_command_are_one_line(words: list[str], message: str) -> None:
    sources = [] if not words else ["--model", "zoo:mnist-cnn", "--data", "samples:mnist"]
    code, _, err = command(*sources, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
