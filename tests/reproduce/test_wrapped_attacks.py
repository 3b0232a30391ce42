"""A search in tf32: only the queries of the attack use it, and its points are confirmed in float32."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import Attack, DeepFool
from marginattack.core.flags import tf32
from marginattack.core.problem import Problem
from marginattack.reproduce.runner import Batch, Outcome
from marginattack.reproduce.wrapped_attacks import TF32_NOTE, LowPrecision


def tf32_flags() -> list[bool]:
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):
        return [backend.fp32_precision == "tf32" for backend in (backends.cudnn.conv, backends.cuda.matmul)]
    return [backend.allow_tf32 for backend in (backends.cudnn, backends.cuda.matmul)]


class RoundingModel(nn.Module):
    """Like a network on a GPU: in tf32 its logits are off by 0.1, in favour of class 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 2)
        self.queries_in_tf32: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.queries_in_tf32.append(all(tf32_flags()))
        logits: Tensor = 10 * self.linear(x - 0.5)
        return logits + 0.1 * self.queries_in_tf32[-1] * torch.tensor([0.0, 1.0])


def raise_in_tf32() -> None:
    with tf32(True):
        assert all(tf32_flags())
        raise ZeroDivisionError


def test_precision_is_restored_after_an_error() -> None:
    before = tf32_flags()
    with pytest.raises(ZeroDivisionError):
        raise_in_tf32()
    assert tf32_flags() == before


@dataclass(frozen=True)
class UnconfirmedSearch(Attack):
    """A search in tf32 whose points are not confirmed in float32."""

    norms: ClassVar = ("l2",)

    def __call__(self, problem: Problem) -> None:
        with tf32(True):
            ma.MarginAttack()(problem)


def test_points_of_a_search_in_tf32_are_confirmed_in_float32() -> None:
    model, x = RoundingModel(), torch.rand(20, 6, generator=torch.Generator().manual_seed(1))
    y = model(x).argmax(1)
    full, confirmed, unconfirmed = (
        ma.measure(model, x, y, "l2", attack=attack, precision=precision, diagnose=False)
        for attack, precision in (
            (ma.MarginAttack(), "float32"),
            (LowPrecision(attack=ma.MarginAttack()), "tf32"),
            (UnconfirmedSearch(), "float32"),
        )
    )
    assert any(model.queries_in_tf32)
    assert not model.queries_in_tf32[-1]
    assert bool(unconfirmed.rejected.any())
    assert not bool(confirmed.rejected.any())
    found = full.success & confirmed.success
    assert found.sum() > 10
    assert bool((confirmed.distance[found] >= full.distance[found]).all())


def test_settings_mention_a_search_in_tf32() -> None:
    def no_outcome(name: str) -> Outcome:
        raise AssertionError(name)

    model = RoundingModel()
    batch = Batch(model=model, images=torch.rand(2, 6), labels=torch.tensor([0, 1]), ids=[0, 1], outcome_of=no_outcome)
    assert batch.measure(DeepFool(), "l2").settings == repr(DeepFool())
    assert not any(model.queries_in_tf32)
    assert replace(batch, tf32=True).measure(DeepFool(), "l2").settings == repr(DeepFool()) + TF32_NOTE
    assert any(model.queries_in_tf32)
