"""Clean and robust accuracy at several distances from one run, in Python and on the command line."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn
from typer.testing import CliRunner

import marginattack as ma
from marginattack.attacks.external import base
from marginattack.cli import app

RUNNER = CliRunner()
EPS = [0.004, 0.008, 0.02]


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    model = smooth(d=12, dtype=torch.float32)
    x, y = inputs(model, (12,), n=24)
    return model, x, torch.where(torch.arange(24) < 3, (y + 1) % 4, y)  # three labels are wrong


def test_one_run_gives_the_accuracies_of_separate_ones(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    margins = ma.measure(*case, "linf", budget=100, diagnose=False)
    result = ma.evaluate(*case, norm="Linf", eps=EPS[::-1], budget=100, diagnose=False)
    assert (result.norm, result.eps, result.clean.accuracy) == ("linf", tuple(EPS), 21 / 24)
    accuracies = [each.accuracy for each in result.robust]
    assert accuracies == margins.robust_accuracy(EPS)
    assert accuracies[0] > accuracies[1] > accuracies[2]
    low, high = result.robust[1].low, result.robust[1].high
    assert 0 < low < accuracies[1] < high < 1
    assert [row[1] for row in result.rows()] == [f"{each:.2%}" for each in (21 / 24, *accuracies)]


def test_samples_stop_below_the_smallest_distance(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    result = ma.evaluate(*case, norm="linf", eps=EPS, budget=200, diagnose=False)
    passes = result.margins.forwards + result.margins.backwards
    decided = (result.margins.distance <= EPS[0]) & (result.margins.distance > 0)
    between = (result.margins.distance > EPS[0]) & (result.margins.distance <= EPS[-1])
    assert decided.any()
    assert between.any()
    assert passes[decided].double().mean() < 0.5 * passes[between].double().mean()
    assert passes.max() <= 200


def test_an_attack_within_a_radius_evaluates_at_that_radius_alone(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    attack = ma.attacks.PGD(eps=0.008, steps=20)
    result = ma.evaluate(*case, norm="linf", eps=0.008, attack=attack, diagnose=False)
    within = ma.evaluate(*case, norm="linf", eps=0.008, budget=200, diagnose=False)
    assert within.robust[0].hits <= result.robust[0].hits < 21  # points on the surface of the ball count
    with pytest.raises(ma.InputError, match=r"searches within 0.008: give eps=0.008 alone"):
        ma.evaluate(*case, norm="linf", eps=EPS, attack=attack)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": []}, "give distances above 0"), ({"eps": [0.1, -1]}, "give distances above 0"),
        ({"eps": "much"}, "give a distance"), ({"eps": 0.1, "enough": 0.1}, "takes no enough"),
        ({"eps": 8, "norm": "linf"}, "no input is farther away than 1 in linf: did you mean 8/255?"),
        ({"eps": 300, "norm": "linf"}, "no input is farther away than 1 in linf: give a smaller one"),
        ({"eps": 12, "norm": "l0"}, "no input is farther away than 12 in l0: give a smaller one"),
        ({"eps": 0.1, "targets": [0]}, "takes no targets"),
    ],
)  # fmt: skip
def test_wrong_distances_raise(case: tuple[nn.Module, Tensor, Tensor], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ma.InputError, match=message):
        ma.evaluate(*case, **options)


def test_the_command_prints_a_table_and_json(tmp_path: Path, case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case[0], case[1][:12], case[2][:12]
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text(
        "import torch\nfrom models import smooth\n\n\ndef net():\n    model = smooth(d=12, dtype=torch.float32)\n"
        f"    model.load_state_dict(torch.load({str(tmp_path / 'weights.pt')!r}))\n    return model\n"
    )
    command = ["evaluate", "--model", f"{tmp_path}/net.py:net", "--data", f"{tmp_path}/data.npz", "--layout", "as-is",
               "--norm", "linf", "--budget", "60", "--eps", "1/250", "--eps", "5/255", "--precision", "float32",
               "-q"]  # fmt: skip
    shown = RUNNER.invoke(app, command)
    assert (shown.exit_code, shown.stderr) == (0, "")
    rows = json.loads(RUNNER.invoke(app, [*command, "--json"]).stdout)
    expected = ma.evaluate(model, x, y, norm="linf", eps=[1 / 250, 5 / 255], budget=60, diagnose=False)
    assert [each["accuracy"] for each in rows["robust"]] == [each.accuracy for each in expected.robust]
    assert rows["robust"][0]["eps"] == 1 / 250
    assert [row[0] for row in expected.rows()] == ["clean", "eps 0.004", "eps 5/255"]
    assert "eps 5/255" in shown.stdout
    assert all(f"{each.accuracy:.2%}" in shown.stdout for each in (expected.clean, *expected.robust))
    for extra, message in (
        (["--norm", "l2"], "norms are linf, l2: evaluate takes one at a time"),
        (["--attack", "foolbox:fmn@0.1"], "omit the radius"),
    ):
        wrong = RUNNER.invoke(app, [*command, *extra])
        assert wrong.exit_code == 2
        assert message in wrong.stderr
    assert "pass --eps" in RUNNER.invoke(app, command[:7]).stderr


BLIND = """
import torch
class Net(torch.nn.Linear):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)
def net():
    torch.manual_seed(0)
    return Net(12, 4)
"""


def test_a_model_without_gradients_is_evaluated_only_despite_the_finding(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(BLIND)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((8, 12), dtype=np.float32), y=np.zeros(8, int))
    command = ["evaluate", "--model", f"{tmp_path}/net.py:net", "--data", f"{tmp_path}/data.npz", "--layout", "as-is",
               "--norm", "linf", "--budget", "20", "--eps", "0.1", "-q"]  # fmt: skip
    refused = RUNNER.invoke(app, command)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "nothing was measured" in refused.stderr
    despite = RUNNER.invoke(app, [*command, "--despite-findings"])
    assert (despite.exit_code, despite.stderr) == (0, "")
    assert "eps 0.1" in despite.stdout


def test_a_single_sample_is_not_samples(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case
    for n, header in ((1, "linf, 1 sample "), (2, "linf, 2 samples ")):
        assert str(ma.evaluate(model, x[:n], y[:n], "linf", eps=0.1, budget=20, diagnose=False)).startswith(header)


def test_attacks_of_other_libraries_run_by_name_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("foolbox", reason="its attack is run")
    pytest.importorskip("pyautoattack", reason="its attack is run")
    command = ["measure", "--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--limit", "2", "--norm", "l2", "-q"]
    names = ["foolbox:ddn", "autoattack:apgd-ce@3/2", "apgd@3/2"]
    words = [word for name in names for word in ("--attack", name)]
    result = RUNNER.invoke(app, [*command, *words, "--budget", "30", "--out", str(tmp_path / "run"), "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    for name in (names[0], "autoattack:apgd-ce@1.5", "apgd@1.5"):
        margins = ma.Margins.load(tmp_path / "run", attack=name)
        assert int((margins.forwards + margins.backwards).max()) <= 30
    assert sorted(each.name for each in (tmp_path / "run/margins").iterdir()) == [
        "apgd@1.5-l2", "autoattack-apgd-ce@1.5-l2", "foolbox-ddn-l2"
    ]  # fmt: skip
    for name, message in ((names[0], "other libraries take no settings"), ("foolbox:dnd", "did you mean foolbox:ddn")):
        wrong = RUNNER.invoke(
            app, [*command, "--attack", name, "--set", f"attack.{name}.steps=3", "--out", str(tmp_path / "new")]
        )
        assert wrong.exit_code == 2
        assert message in wrong.stderr


def test_list_attacks_shows_which_libraries_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["name"]: row for row in json.loads(RUNNER.invoke(app, ["list", "attacks", "--json"]).stdout)}
    assert {"race", "deepfool", "square@EPS", "apgd@EPS"} <= set(rows)
    assert rows["art:pgd@EPS"]["norms"] == "l2 linf"

    def version(name: str) -> str:
        if name == "Foolbox":
            return "3.3.4"
        raise PackageNotFoundError

    monkeypatch.setattr(base, "version", version)
    rows = {row["name"]: row for row in json.loads(RUNNER.invoke(app, ["list", "attacks", "--json"]).stdout)}
    assert rows["foolbox:ddn"]["reference"] == "Foolbox 3.3.4"
    assert rows["advlib:ddn"]["reference"] == "adv-lib 0.2.8, not installed"
