"""A search in tf32: on while the attack looks, off when what it found is judged."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import Attack, DeepFool
from marginattack.core.flags import tf32
from marginattack.core.problem import Problem
from marginattack.reproduce.fast import NOTE, InTf32
from marginattack.reproduce.rows import Outcome, Piece


def in_tf32() -> list[bool]:
    backends: Any = torch.backends
    if hasattr(backends.cudnn, "conv"):
        return [place.fp32_precision == "tf32" for place in (backends.cudnn.conv, backends.cuda.matmul)]
    return [place.allow_tf32 for place in (backends.cudnn, backends.cuda.matmul)]


class Coarse(nn.Module):
    """A stand-in for a network on a GPU: in tf32 its logits are off by a tenth, in favour of class 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 2)
        self.looks: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.looks.append(all(in_tf32()))
        logits: Tensor = 10 * self.linear(x - 0.5)
        return logits + 0.1 * self.looks[-1] * torch.tensor([0.0, 1.0])


def broken() -> None:
    with tf32(True):
        assert all(in_tf32())
        raise ZeroDivisionError


def test_precision_is_as_before_afterwards_also_when_something_is_raised() -> None:
    before = in_tf32()
    with pytest.raises(ZeroDivisionError):
        broken()
    assert in_tf32() == before


@dataclass(frozen=True)
class Bare(Attack):
    """A search in tf32 that trusts what it sees."""

    norms: ClassVar = ("l2",)

    def __call__(self, problem: Problem) -> None:
        with tf32(True):
            ma.MarginAttack()(problem)


def test_a_search_in_tf32_is_judged_in_float32_and_leads_by_what_tf32_changes() -> None:
    model, x = Coarse(), torch.rand(20, 6, generator=torch.Generator().manual_seed(1))
    y = model(x).argmax(1)
    full, fast, bare = (
        ma.measure(model, x, y, "l2", attack=attack)
        for attack in (ma.MarginAttack(), InTf32(attack=ma.MarginAttack()), Bare())
    )
    assert any(model.looks)
    assert not model.looks[-1]
    assert bool(bare.rejected.any())
    assert not bool(fast.rejected.any())
    found = full.success & fast.success
    assert found.sum() > 10
    assert bool((fast.distance[found] >= full.distance[found]).all())


def test_a_row_searched_in_tf32_says_so() -> None:
    def nothing(name: str) -> Outcome:
        raise AssertionError(name)

    model = Coarse()
    piece = Piece(model=model, images=torch.rand(2, 6), labels=torch.tensor([0, 1]), ids=[0, 1], before=nothing)
    assert piece.measured(DeepFool(), "l2").settings == repr(DeepFool())
    assert not any(model.looks)
    assert replace(piece, tf32=True).measured(DeepFool(), "l2").settings == repr(DeepFool()) + NOTE
    assert any(model.looks)
