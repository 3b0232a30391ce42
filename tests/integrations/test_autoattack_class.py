"""AutoAttack's class with our attack: its signatures, its example script, its state file."""

import json
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import eval_script

import marginattack as ma
from marginattack.attacks.external.base import ProblemInfo
from marginattack.integrations import autoattack, pyautoattack
from marginattack.integrations.autoattack import AutoAttack

EPS = 0.006


def make_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), smooth(d=3 * 8 * 8, classes=5, dtype=torch.float32))


@pytest.fixture(scope="module")
def images() -> tuple[nn.Module, Tensor, Tensor]:
    model = make_network()
    x, y = inputs(model, (3, 8, 8), n=12)
    return model, x, torch.where(torch.arange(12) == 0, (y + 1) % 5, y)  # one label is wrong


def test_points_are_adversarial_within_the_radius(
    images: tuple[nn.Module, Tensor, Tensor], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, x, y = images
    adversary = AutoAttack(model, norm="Linf", eps=EPS, log_path=tmp_path / "log.txt", budget=100)
    with torch.no_grad():
        points, predicted = adversary.run_standard_evaluation(x, y, bs=4, return_labels=True)
        assert torch.equal(model(points).argmax(1), predicted)
    assert (points - x).abs().max() <= EPS * (1 + 1e-4)
    robust = float((predicted == y).double().mean())
    assert robust == ma.evaluate(model, x, y, norm="linf", eps=EPS, budget=100, diagnose=False).robust[0].accuracy
    assert 0 < robust < 11 / 12
    printed = capsys.readouterr().out
    assert "initial accuracy: 91.67%" in printed
    assert f"robust accuracy: {robust:.2%}" in printed
    assert "race - 1/3 -" in printed
    assert (tmp_path / "log.txt").read_text() == printed
    assert adversary.clean_accuracy(x, y) == 11 / 12


def test_robust_accuracy_is_at_most_autoattacks(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    peer = pytest.importorskip("pyautoattack", reason="compared with it")
    model, x, y = images
    for norm, eps in (("Linf", EPS), ("L2", 0.06)):
        with torch.random.fork_rng():
            points, _ = peer.AutoAttack(model, norm=norm, eps=eps, seed=0, version="custom",
                                        attacks=["apgd-ce"]).run_standard_evaluation(x, y)  # fmt: skip
        ours = AutoAttack(model, norm=norm, eps=eps, verbose=False, budget=200).run_standard_evaluation(x, y)
        theirs = (model(points).argmax(1) == y).sum()
        assert 0 < (model(ours).argmax(1) == y).sum() <= theirs < 11


def test_autoattacks_own_example_runs_with_our_import(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    pytest.importorskip("pyautoattack", reason="its script is run")
    model, x, y = images[0], images[1][:5], images[2][:5]
    before = set(sys.modules), list(sys.path)
    points, printed, seconds = eval_script.run_script(autoattack, model, x, y, norm="Linf", eps=EPS)
    assert (set(sys.modules) >= before[0], sys.path) == (True, before[1])
    robust = float((model(points).argmax(1) == y).double().mean())
    assert 0 < robust < 1
    assert f"robust accuracy: {robust:.2%}" in printed
    assert seconds > 0


def test_an_interrupted_evaluation_resumes(
    images: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = images
    path, seen = tmp_path / "state.json", list[list[int]]()
    real = ma.measure

    def interrupted(*arguments: Any, **options: Any) -> Any:
        seen.append(options["ids"].tolist())
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(autoattack, "measure", interrupted)
    options: dict[str, Any] = {"norm": "Linf", "eps": EPS, "budget": 60, "verbose": False}
    with pytest.raises(KeyboardInterrupt):
        AutoAttack(model, **options).run_standard_evaluation(x, y, bs=4, state_path=path)
    resumed = AutoAttack(model, **options)
    resumed.run_standard_evaluation(x, y, bs=4, state_path=path)
    assert seen[2] == seen[1]  # the rows before are not attacked again
    whole = AutoAttack(model, **options)
    whole.run_standard_evaluation(x, y, bs=4)
    assert resumed.robust_accuracy == whole.robust_accuracy
    stored = json.loads(path.read_text())
    assert stored["_run_attacks"] == ["race"]
    state = pytest.importorskip("pyautoattack.state").EvaluationState.from_disk(path)  # which AutoAttack reads
    assert state.robust_flags.float().mean().item() == pytest.approx(whole.robust_accuracy)
    with pytest.raises(ma.InputError, match="is of an evaluation with"):
        AutoAttack(model, version="custom", attacks_to_run=["square"]).run_standard_evaluation(x, y, state_path=path)
    path.write_text(json.dumps({**stored, "_run_attacks": ["race:12"]}))  # interrupted after the last batch
    AutoAttack(model, **options).run_standard_evaluation(x, y, bs=4, state_path=path)
    assert json.loads(path.read_text())["_run_attacks"] == ["race"]
    with pytest.raises(ma.InputError, match="is of 12 images, not 8"):
        AutoAttack(model, **options).run_standard_evaluation(x[:8], y[:8], state_path=path)
    path.write_text("[]")
    with pytest.raises(ma.InputError, match="holds no state"):
        resumed.run_standard_evaluation(x, y, state_path=path)


def test_the_custom_version_runs_each_attack_with_its_settings(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = images
    names = ["apgd-ce", "apgd-dlr", "apgd-t", "square", "race"]
    adversary = AutoAttack(lambda z: model(z), norm="L2", eps=0.06, version="custom", verbose=False)
    adversary.attacks_to_run, adversary.budget = names, 100
    adversary.apgd.n_iter = adversary.apgd_targeted.n_iter = 10
    adversary.apgd.n_restarts = 1
    adversary.square.n_queries = 20
    found = adversary.run_standard_evaluation_individual(x, y)
    assert list(found) == names == adversary.attacks_to_run
    robust = {name: int((model(points).argmax(1) == y).sum()) for name, points in found.items()}
    assert min(robust.values()) == robust["race"] < robust["square"] <= 11
    adversary.square.n_queries = 1
    again = adversary.run_standard_evaluation_individual(x, y)
    assert (model(again["square"]).argmax(1) == y).sum() > robust["square"] - 1


def test_fab_is_that_of_autoattack_with_its_settings(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    peer = pytest.importorskip("pyautoattack", reason="its FAB is run")
    model, x, y = images
    ours = AutoAttack(model, eps=EPS, version="custom", attacks_to_run=["fab"], verbose=False)
    theirs = peer.AutoAttack(model, eps=EPS, version="custom", attacks=["fab"], seed=0)
    assert (ours.fab.n_restarts, ours.apgd.n_restarts) == (theirs.fab.n_restarts, theirs.apgd.n_restarts)
    for each in (ours, theirs):
        each.fab.n_iter, each.fab.n_restarts = 4, 2
    points = ours.run_standard_evaluation(x, y)
    with torch.random.fork_rng():
        expected, _ = theirs.run_standard_evaluation(x, y)
    left = [int((model(each).argmax(1) == y).sum()) for each in (points, expected)]
    assert 0 < left[0] <= left[1] < 11
    targeted = ours._fab("fab-t").settings(ProblemInfo("linf", 100, 5, grayscale=False))
    assert (targeted["targeted"], targeted["n_target_classes"], targeted["n_restarts"]) == (True, 4, 1)


def test_pyautoattacks_class_returns_pairs_and_has_its_signatures(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    peer = pytest.importorskip("pyautoattack", reason="its signatures are compared").AutoAttack
    model, x, y = images
    kind = pyautoattack.AutoAttack
    for name in ("__init__", "run_standard_evaluation", "run_standard_evaluation_individual", "clean_accuracy"):
        known = signature(getattr(kind, name)).parameters
        assert set(signature(getattr(peer, name)).parameters) <= set(known), name
    adversary = kind(model, eps=EPS, budget=60)
    points, predicted = adversary.run_standard_evaluation(x, y, batch_size=4)
    assert torch.equal(model(points).argmax(1), predicted)
    alone = AutoAttack(model, eps=EPS, budget=60, verbose=False)
    assert torch.equal(alone.run_standard_evaluation(x, y, bs=4), points)
    found = kind(model, eps=EPS, version="custom", attacks=["race"], budget=60).run_standard_evaluation_individual(x, y)
    assert [part.shape for part in found["race"]] == [x.shape, y.shape]


def test_pyautoattacks_class_logs_and_prints_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    x, y = torch.tensor([[0.9, 0.2], [0.5, 0.4]]), torch.tensor([0, 0])
    with caplog.at_level("DEBUG", "auto-attack"):
        pyautoattack.AutoAttack(nn.Identity(), eps=0.2, budget=60).run_standard_evaluation(x, y)
    assert "robust accuracy: 50.00%" in caplog.text
    assert capsys.readouterr().out == ""


def test_a_point_just_outside_the_radius_does_not_count() -> None:
    x = torch.tensor([[0.9, 0.9 - 2 * 0.300003], [0.9, 0.9 - 2 * 0.2999995]], requires_grad=True)
    y = torch.zeros(2, dtype=torch.int64)
    adversary = AutoAttack(nn.Identity(), eps=0.3, verbose=False, budget=60)
    points = adversary.run_standard_evaluation(x, y)
    assert (points - x).abs().max() <= 0.3 + 1e-6
    assert (points.argmax(1).tolist(), adversary.robust_accuracy) == ([0, 1], 0.5)
    result = ma.evaluate(nn.Identity(), x.detach(), y, "linf", eps=0.3, budget=60, diagnose=False)
    assert result.robust[0].accuracy == 0.5


@pytest.mark.parametrize("number", [0, 2])
def test_images_without_a_label_each_raise(number: int) -> None:
    with pytest.raises(ma.InputError, match=f"{number} images, but 0 labels"):
        AutoAttack(nn.Identity()).run_standard_evaluation(torch.rand(number, 4), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "fast"}, "no version named 'fast'"), ({"attacks_to_run": ["square"]}, "needs version='custom'"),
        ({"is_tf_model": True}, "only PyTorch"), ({"norm": "L7"}, "no norm named"),
        ({"eps": -0.1}, r"eps is -0.1: give distances above 0"),
    ],
)  # fmt: skip
def test_wrong_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ma.InputError, match=message):
        AutoAttack(nn.Identity(), **options)


def test_nothing_to_run_and_missing_labels_raise() -> None:
    x, y = torch.tensor([[0.9, 0.2], [0.5, 0.4]]), torch.tensor([0, 0])
    with pytest.raises(ma.InputError, match="attacks_to_run is empty"):
        AutoAttack(nn.Identity(), version="custom").run_standard_evaluation(x, y)
    with pytest.raises(ma.InputError, match="2 images, but 1 labels"):
        AutoAttack(nn.Identity()).run_standard_evaluation(x, y[:1])


def test_a_randomised_model_is_evaluated_with_the_rand_version() -> None:
    class Noisy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images + 0.01 * torch.randn_like(images)

    x, y = torch.tensor([[0.9, 0.2], [0.5, 0.4]]), torch.tensor([0, 0])
    points = AutoAttack(Noisy(), eps=0.2, version="rand", verbose=False, budget=400).run_standard_evaluation(x, y)
    assert points.argmax(1).tolist() == [0, 1]
