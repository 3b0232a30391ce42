"""Our attacks inside Foolbox, AttackBench and torchattacks; their models here."""

import doctest
import json
import sys
from dataclasses import fields
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torchvision_stub
from models import inputs, smooth
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import marginattack as ma
from marginattack.integrations import robustbench, torchattacks
from marginattack.integrations.autoattack import AutoAttack
from marginattack.integrations.maite import as_module
from marginattack.sources.model_hubs import import_robustbench
from marginattack.sources.models import open_model

MEAN, STD = [0.1, 0.2, 0.3], [0.5, 0.4, 0.6]


@pytest.fixture(scope="module")
def images() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Flatten(), smooth(d=75, classes=4, dtype=torch.float32)).eval()
    return (model, *inputs(model, (3, 5, 5), n=8))


@pytest.mark.parametrize(
    "name", ["autoattack", "pyautoattack", "foolbox", "attackbench", "torchattacks", "maite", "training"]
)
def test_the_examples_of_the_docstrings_run(name: str) -> None:
    pytest.importorskip("foolbox", reason="an example uses it")
    result = doctest.testmod(import_module(f"marginattack.integrations.{name}"))
    assert result.failed == 0 < result.attempted


# Foolbox


@pytest.fixture(scope="module")
def foolbox_model(images: tuple[nn.Module, Tensor, Tensor]) -> Any:
    fb = pytest.importorskip("foolbox", reason="its models and helpers are used")
    statistics = {"mean": MEAN, "std": STD, "axis": -3}
    return fb.PyTorchModel(images[0], bounds=(0, 1), device="cpu", preprocessing=statistics)


def test_measure_takes_a_foolbox_model_with_bounds_and_preprocessing(
    images: tuple[nn.Module, Tensor, Tensor], foolbox_model: Any
) -> None:
    model, x, _ = images
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    class Normalised(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            logits: Tensor = model((z - mean) / std)
            return logits

    y = foolbox_model(x).argmax(1)
    plain = ma.measure(Normalised(), x, y, "l2", budget=40)
    assert torch.equal(ma.measure(foolbox_model, x, y, "l2", budget=40).distance, plain.distance)
    wide = foolbox_model.transform_bounds((-1, 1))
    widened = ma.measure(wide, 2 * x - 1, y, "l2", budget=40)
    torch.testing.assert_close(widened.distance, 2 * plain.distance, rtol=1e-2, atol=0)
    assert widened.settings["bounds"] == [-1.0, 1.0]
    with pytest.raises(ma.InputError, match="bounds are given twice"):
        ma.measure(foolbox_model, x, y, "l2", bounds=(0, 1))


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
@pytest.mark.parametrize("name", ["Race", "MarginAttack"])
def test_our_attacks_are_attacks_of_foolbox(
    images: tuple[nn.Module, Tensor, Tensor], foolbox_model: Any, name: str, norm: str
) -> None:
    from foolbox import accuracy
    from foolbox.attacks.base import MinimizationAttack

    from marginattack.integrations import foolbox

    x = images[1]
    y = foolbox_model(x).argmax(1)
    assert accuracy(foolbox_model, x, y) == 1.0
    attack = getattr(foolbox, name)(norm, budget=60)
    assert isinstance(attack, MinimizationAttack)
    margins = ma.measure(foolbox_model, x, y, norm, attack=attack.attack, budget=60)
    eps = [1.001 * value for value in sorted(margins.distance.tolist())[::3]]
    raw, clipped, success = attack(foolbox_model, x, y, epsilons=[*eps, None])
    assert (len(raw), len(clipped), success.shape) == (4, 4, (4, 8))
    for level, points, reached in zip(eps, clipped, success, strict=False):
        assert torch.equal(reached, margins.distance <= level)
        assert torch.equal(foolbox_model(points).argmax(1) != y, reached)
        size = (points - x).flatten(1).norm(p={"l1": 1, "l2": 2, "linf": np.inf}[norm], dim=1)
        assert (size <= level * (1 + 1e-4)).all()
    assert success[-1].all()


def test_foolbox_criteria_and_its_repeat(images: tuple[nn.Module, Tensor, Tensor], foolbox_model: Any) -> None:
    import foolbox as fb

    from marginattack.integrations import foolbox

    x = images[1]
    target = (foolbox_model(x).argmax(1) + 1) % 4
    criterion = fb.criteria.TargetedMisclassification(target)
    raw, _, success = foolbox.Race("l2", budget=60).repeat(2)(foolbox_model, x, criterion, epsilons=None)
    assert success.all()
    assert torch.equal(foolbox_model(raw).argmax(1), target)
    with pytest.raises(ma.InputError, match="use Misclassification or"):
        foolbox.Race("l2")(foolbox_model, x, fb.criteria.TargetedMisclassification(target) & criterion, epsilons=None)
    with pytest.raises(ma.InputError, match="LBFGS supports l2"):
        foolbox.Minimization("lbfgs", "linf")


# AttackBench


def test_attackbenchs_runner_takes_our_attack(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    torchvision_stub.install()
    bench = pytest.importorskip("attackbench", reason="its runner is used", exc_type=ImportError)
    from marginattack.integrations import attackbench

    model, x, y = images
    attack = attackbench.attack("race", budget=80)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    for given in (attack, bench.create_custom_attack(attack, attack_name="race")):
        result = bench.run_attack(model, loader, given, "linf", query_budget=80, device=torch.device("cpu"), debug=True)
        assert all(result["adv_success"])
        assert not any(result["batch_failures"])
        assert max(np.add(result["num_forwards"], result["num_backwards"])) <= 80
        ours = ma.measure(model, x, y, "linf", budget=80 - attackbench.CHECKS).distance.numpy()
        np.testing.assert_allclose(result["distances"]["linf"], ours, rtol=0.01)


def test_the_callable_of_attackbench_needs_no_attackbench(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    from marginattack.integrations import attackbench

    model, x, y = images
    found = attackbench.attack("race", budget=80)(model, x, y, "l2", targets=(y + 1) % 4, targeted=True)
    assert torch.equal(model(found).argmax(1), (y + 1) % 4)
    with pytest.raises(ma.InputError, match="budget is 10, but checks of the model take 18 passes"):
        attackbench.attack("race", budget=10)


# torchattacks


def test_a_callable_like_those_of_torchattacks(images: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = images
    atk = torchattacks.Attack(model, norm="Linf", budget=60)
    nearest = atk(x, y)
    assert (model(nearest).argmax(1) != y).all()
    distance = (nearest - x).flatten(1).abs().amax(1)
    eps = 1.01 * float(distance.median())
    some = torchattacks.Attack(model, norm="Linf", eps=eps, budget=60)(x, y)
    assert torch.equal(model(some).argmax(1) != y, distance <= eps)
    assert (some - x).abs().max() <= eps * (1 + 1e-4)
    atk.set_mode_targeted_by_label(quiet=True)
    assert torch.equal(model(atk(x, (y + 2) % 4)).argmax(1), (y + 2) % 4)
    atk.set_mode_default()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    wrapped = nn.Sequential(Denormalised(mean, std), model)
    normal = torchattacks.Attack(wrapped, norm="Linf", budget=60)
    normal.set_normalization_used(MEAN, STD)
    torch.testing.assert_close(normal((x - mean) / std, y) * std + mean, nearest, rtol=0, atol=1e-3)


class Denormalised(nn.Module):
    """Images from normalised ones."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, images: Tensor) -> Tensor:
        return images * self.std + self.mean


# MAITE


@pytest.mark.parametrize("softmax", [False, True])
def test_a_classifier_of_maites_protocol_is_a_model(images: tuple[nn.Module, Tensor, Tensor], softmax: bool) -> None:
    model, x, y = images

    class Protocol:
        metadata: ClassVar = {"id": "smooth"}

        def __init__(self) -> None:
            self.network = model

        def __call__(self, batch: Any) -> Any:
            logits = self.network(torch.stack(list(batch)))
            return list(logits.softmax(1) if softmax else logits)

    protocols = pytest.importorskip("maite.protocols.image_classification", reason="its protocol is checked")
    assert isinstance(Protocol(), protocols.Model)
    found = ma.measure(as_module(Protocol()), x, y, "l2", budget=60)
    plain = ma.measure(model, x, y, "l2", budget=60)
    torch.testing.assert_close(found.distance, plain.distance, rtol=1e-3, atol=0)


# RobustBench


def test_benchmark_has_robustbenchs_signature_and_keys(
    images: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision_stub.install()
    import torchvision

    model, x, y = images

    class Images:
        def __init__(self, root: str, *, train: bool, transform: Any, download: bool) -> None:
            assert (root, train, download) == ("data", False, True)

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            return x[row], int(y[row])

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Images)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(robustbench, "AutoAttack", partial(AutoAttack, budget=60))
    options: dict[str, Any] = {"dataset": "cifar10", "threat_model": "Linf", "eps": 0.01, "data_dir": "data"}
    clean, robust = robustbench.benchmark(model, n_examples=6, to_disk=True, model_name="Mine", **options)
    assert (clean, robust) == (1.0, ma.evaluate(model, x[:6], y[:6], "linf", eps=0.01, budget=60).robust[0].accuracy)
    entry = json.loads((tmp_path / "model_info/cifar10/Linf/Mine.json").read_text())
    assert {key: entry[key] for key in ("dataset", "eps", "clean_acc", "external", "autoattack_acc")} == {
        "dataset": "cifar10", "eps": 0.01, "clean_acc": "100.00", "external": f"{100 * robust:.2f}",
        "autoattack_acc": None,
    }  # fmt: skip
    for wrong, message in (({"eps": None}, "eps is missing"), ({"threat_model": "corruptions"}, "choose one of"),
                           ({"to_disk": True}, "model_name is missing")):  # fmt: skip
        with pytest.raises(ma.InputError, match=message):
            robustbench.benchmark(model, n_examples=2, **{**options, **wrong})


def test_models_of_robustbench_by_name(
    images: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ma.InputError, match="add --trust-pickle"):
        open_model("robustbench:Carmon2019Unlabeled")
    monkeypatch.setitem(sys.modules, "robustbench.utils", None)
    with pytest.raises(ma.MarginAttackError, match="robustbench"):
        open_model("robustbench:Carmon2019Unlabeled", trust_pickle=True)
    package, utils = ModuleType("robustbench"), ModuleType("robustbench.utils")
    asked: list[object] = []

    def load_model(name: str, **options: str) -> nn.Module:
        asked.append((name, options))
        return images[0]

    utils.load_model = load_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "robustbench", package)
    monkeypatch.setitem(sys.modules, "robustbench.utils", utils)
    monkeypatch.setitem(sys.modules, "autoattack", SimpleNamespace(__spec__=SimpleNamespace()))
    assert open_model("robustbench:Mine@cifar100/L2", trust_pickle=True).module is images[0]
    assert asked == [("Mine", {"dataset": "cifar100", "threat_model": "L2"})]


def real_robustbench() -> Any:
    """RobustBench itself, or skip."""
    torchvision_stub.install()
    try:
        return import_robustbench("eval")
    except ma.MarginAttackError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore")
def test_the_signature_and_the_keys_are_robustbenchs() -> None:
    theirs = signature(real_robustbench().benchmark).parameters
    assert list(theirs) == list(signature(robustbench.benchmark).parameters)
    keys = {field.name for field in fields(import_robustbench("utils").ModelInfo)}
    assert set(robustbench.KEYS) - keys == {"external"}  # which its leaderboard reads, too
    assert keys <= set(robustbench.KEYS)


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_robustbench_with_weights_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_robustbench()
    zoo = import_robustbench("model_zoo.cifar10")
    network = zoo.linf["Wong2020Fast"]["model"]()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/cifar10/Linf").mkdir(parents=True)
    torch.save(network.state_dict(), tmp_path / "models/cifar10/Linf/Wong2020Fast.pt")
    opened = open_model("robustbench:Wong2020Fast@cifar10/Linf", trust_pickle=True).module
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(opened(x), network.eval()(x))


@pytest.mark.parametrize(
    ("name", "needs", "extra"), [("foolbox", "foolbox", "peers"), ("lightning", "lightning", "training")]
)
def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, name: str, needs: str, extra: str) -> None:
    monkeypatch.delitem(sys.modules, f"marginattack.integrations.{name}", raising=False)
    for module in [each for each in sys.modules if each.partition(".")[0] in (needs, "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, needs, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"{needs}.* is not installed\): pip install 'marginattack\[{extra}\]'"
    ):
        import_module(f"marginattack.integrations.{name}")
