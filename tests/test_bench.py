"""The benchmark: its measures against numbers worked out by hand, the suite in small, and the command."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from models import inputs, smooth
from strangers import stranger
from torch import Tensor
from typer.testing import CliRunner

import marginattack as ma
from marginattack.analysis import benchmarking as bench
from marginattack.cli import bench as cli_bench
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.integrations import PEERS, missing
from marginattack.integrations.guest import Guest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import networks
import overall
import peers
import suite

INF = float("inf")


# The measures


def test_area_of_a_staircase() -> None:
    # Of four samples three fall at 1, 2 and 4; the last is never found: 1 to 1, 3/4 to 2, 1/2 to 4.
    assert bench.area(np.array([1.0, 2.0, 4.0, INF]), 4.0) == pytest.approx(1 + 0.75 + 2 * 0.5)
    assert bench.area(np.array([1.0, 2.0, 4.0, INF]), 4.0, accuracy=0.5) == pytest.approx(2.75 / 2)


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
    # a miss counts as d_max = 4: once the double of the best, once the best itself
    assert bench.mean_excess(np.array([1.0, INF, INF, INF]), best) == pytest.approx(1 / 3)


def test_pool_is_the_least_of_everything() -> None:
    trials = [made([1.0, INF, 3.0]), made([2.0, 5.0, 2.5], budget=100)]
    assert bench.pooled(trials).tolist() == [1.0, 5.0, 2.5]
    rows = bench.table({"a": trials[:1], "b": trials[1:]})
    assert [row[:2] for row in rows] == [("a", "10"), ("b", "100")]
    # d_max 5: (1 - 1) + (5/5 - 1) + (3/2.5 - 1) over 3, and 1 + 0 + 0 over 3
    assert [row[3] for row in rows] == ["6.67%", "33.33%"]


def made(distance: list[float], budget: int = 10) -> bench.Trial:
    passes = np.full(len(distance), budget)
    curve = np.repeat(np.array(distance)[:, None], len(bench.grid(budget)), axis=1)
    return bench.Trial(
        attack="", budget=budget, distance=np.array(distance), curve=curve, forwards=passes, backwards=0 * passes,
        rejected=0, seconds=0.0,
    )  # fmt: skip


def test_trial_agrees_with_measure_and_its_curve_ends_there() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    attack, classifier = ma.MarginAttack(moves=20), Classifier(model)
    with classifier.held():
        images, labels, _ = classifier.accept(x, y)
        trial = bench.trial(classifier, images, labels, L2, attack, budget=100, batch=7)
    whole = ma.measure(model, x, y, "l2", attack=attack, budget=100, batch=7)
    np.testing.assert_allclose(trial.distance, whole.distance.numpy())
    assert (trial.forwards + trial.backwards == (whole.forwards + whole.backwards).numpy()).all()
    assert trial.curve.shape == (20, len(bench.grid(100)))
    assert (trial.curve[:, 1:] <= trial.curve[:, :-1]).all()
    assert (trial.curve[:, -1] >= trial.distance * (1 - 1e-6)).all()


# The suite


def test_roster_holds_ours_the_papers_and_every_peer() -> None:
    names = peers.roster("l2", "mnist")
    assert {"marginattack", "deepfool", "cw", "lbfgs", "search", "preset:mnist-l2"} <= set(names)
    assert {name for name, entry in PEERS.items() if "l2" in entry.entry.norms} <= set(names)
    assert not {"pgd", "bim", "daa", "boundary", "jsma"} & set(names)
    assert "boundary" in peers.roster("l2", "mnist", aside=True)


def test_who_cannot_run_is_listed_with_the_reason() -> None:
    for name in PEERS:
        who = peers.enlist(name, 100)
        if why := missing(name):
            assert who == peers.Absent(name, why)
        else:
            assert who is PEERS[name]


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_networks_of_the_suite(name: str, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    with torch.no_grad():
        assert (networks.network(name)(images).argmax(1) == labels).double().mean() > 0.95


def test_winners_take_all_keeps_the_largest() -> None:
    kept = networks.WinnersTakeAll(0.5)(torch.tensor([[[1.0, -2.0], [3.0, 0.5]]]))
    assert kept.tolist() == [[[1.0, 0.0], [3.0, 0.0]]]


def test_suite_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Records after each cell, a second run that does nothing anew, and peers that fail listed with the reason."""
    monkeypatch.setenv("OUT", str(tmp_path))

    def broken(guest: Guest) -> Tensor:
        guest(guest.images)
        raise AssertionError("not today")

    monkeypatch.setattr(peers, "PEERS", {"made:broken": stranger(broken)})
    monkeypatch.setattr(peers, "missing", lambda name: "")
    known = bench.contender
    monkeypatch.setattr("peers.contender", lambda n, b: stranger(broken) if n == "made:broken" else known(n, b))
    command = ["suite.py", "--models", "mnist-gelu", "--norms", "l2", "--budgets", "20", "--samples", "5"]
    command += ["--only", "marginattack", "deepfool", "broken", "--work", str(tmp_path / "raw")]
    monkeypatch.setattr(sys, "argv", command)
    suite.main()
    record = json.loads((tmp_path / "suite-mnist-gelu-l2.json").read_text())
    numbers = record["numbers"]
    assert [row["budget"] for row in numbers["rows"]] == [20, 20]
    assert {row["attack"] for row in numbers["rows"]} == {"marginattack", "deepfool"}
    assert all(row["most"] <= 20 for row in numbers["rows"])
    assert min(row["excess"] for row in numbers["rows"]) >= 0
    assert numbers["failed"] == {"made:broken 20": "AssertionError: not today"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*-20.npz")}
    suite.main()
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*-20.npz")}
    assert len(before) == 2
    assert "| 20 | marginattack |" in capsys.readouterr().out


def test_pool_remembers_cells_that_were_run_anew(tmp_path: Path) -> None:
    path = tmp_path / "pool.npy"
    assert suite.pool(path, np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert suite.pool(path, np.array([1.5, 1.0])).tolist() == [1.0, 1.0]


def test_what_takes_too_long_ends_and_keeps_what_it_found() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    good = ma.measure(model, x, y, "l2").adversarial

    def endless(guest: Guest) -> Tensor:
        guest(good)
        time.sleep(60)
        return guest.images

    place = suite.Arena(suite.Subject("made", lambda: model), Classifier(model), x, y, "")
    found = suite.run_cell(place, "l2", stranger(endless), 50, 20, limit=0.5)
    assert isinstance(found, bench.Trial)
    assert np.isfinite(found.distance).all()
    assert 0.4 <= found.seconds < 20


def test_overall_means_by_hand() -> None:
    def numbers(norm: str, *excesses: tuple[str, float]) -> dict[str, object]:
        rest = {"budget": 100, "optimality": 0.5, "success": 1.0, "forwards": 50.0, "backwards": 49.0}
        return {"norm": norm, "rows": [{"attack": name, "excess": excess, **rest} for name, excess in excesses]}

    found = [numbers("l2", ("a", 0.1), ("b", 0.2)), numbers("l2", ("a", 0.4), ("b", 0.1), ("c", 0.0)), numbers("l1")]
    rows = overall.overall(found, "l2", 100)
    assert [(row["attack"], row["models"], row["first"]) for row in rows] == [("b", 2, 0), ("a", 2, 1), ("c", 1, 1)]
    assert rows[0]["excess"] == pytest.approx(0.15)
    assert rows[1]["worst"] == 0.4
    assert "| b | 2 | 0.5000 | 15.00% | 20.00% | 100.0% | 0 | 99 |" in overall.table(rows)


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no model given: pass --model"),
        (["--attack", "magic"], "no attack named 'magic'"),
        (["--peer", "advlib:magic"], "no attack named 'advlib:magic'"),
        (["--budget", "0"], "--limit and --budget must be at least 1"),
        (["--norm", "l7"], "no norm named 'l7'"),
    ],
)
def test_command_refuses_in_a_line(words: list[str], message: str) -> None:
    subject = [] if not words else ["--model", "zoo:mnist-cnn", "--data", "samples:mnist"]
    code, _, err = command(*subject, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
