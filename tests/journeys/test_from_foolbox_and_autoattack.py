"""Coming from Foolbox and AutoAttack: the same model and ε, their words, and margins in place of a success rate."""

import importlib
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marginattack as ma

EPS = 0.12


@pytest.fixture(scope="module")
def correct(network: nn.Module, digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:16].contiguous(), digits[1][:16]


def test_robust_accuracy_is_at_most_that_of_foolbox(network: nn.Module, correct: tuple[Tensor, Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports deprecated modules of scipy
        foolbox: Any = importlib.import_module("foolbox")
    images, labels = correct
    attack = foolbox.attacks.LinfPGD(steps=20)
    _, _, success = attack(foolbox.PyTorchModel(network.eval(), bounds=(0, 1)), images, labels, epsilons=[EPS])
    theirs = 1 - float(success.float().mean())
    margins = ma.measure(network, images, labels, norm="Linf", budget=40)
    assert margins.robust_accuracy(EPS) <= theirs
    assert margins.robust_accuracy(EPS) < 1


def test_the_arguments_of_autoattack(network: nn.Module, correct: tuple[Tensor, Tensor]) -> None:
    x_test, y_test = correct
    by_name, by_number = (ma.measure(network, x_test, y_test, norm=norm, budget=20) for norm in ("Linf", math.inf))
    assert by_name.norm == by_number.norm == "linf"
    assert by_name.distance.equal(by_number.distance)
    x_adv = by_name.adversarial
    assert ((x_adv - x_test).abs().flatten(1).amax(1) <= by_name.distance + 1e-6).all()
    with torch.no_grad():
        assert (network(x_adv).argmax(1) != y_test)[by_name.success].all()
    with pytest.raises(ma.InputError, match="no norm named 'L7': choose one of l0, l1, l2, linf"):
        ma.measure(network, x_test, y_test, norm="L7")
