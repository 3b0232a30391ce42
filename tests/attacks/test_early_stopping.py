"""MarginAttack with ``gain``: samples stop once ten pairs of moves gained next to nothing."""

from dataclasses import replace

import pytest
import torch
from models import Function
from problems import pose, small
from torch import Tensor

import marginattack as ma
from marginattack.core.schedules import Power

PLAIN = ma.MarginAttack(follow=0, scans=0, moves=220, closing=20, rescue=0, radius=0.1, beta=Power(0.5))


def test_samples_stop_when_ten_pairs_gained_nothing() -> None:
    attack = replace(PLAIN, restarts=2)
    full, early = small(), small()
    full.solve(attack)
    early.solve(replace(attack, gain=1e-8))
    passes = early.budget.forwards + early.budget.backwards
    assert len(set(passes.tolist())) > 2  # samples stop one by one
    assert (passes % 40 == 0).all()  # after a multiple of ten pairs, without closing moves
    assert passes.max() < 0.5 * (full.budget.forwards + full.budget.backwards).min()
    torch.testing.assert_close(early.incumbent.distance, full.incumbent.distance, rtol=1e-6, atol=0)


def test_other_samples_continue_when_one_has_spent_its_budget() -> None:
    """The second sample never crosses and is charged for every move; the first has budget left for all ten starts."""
    model = Function(lambda x: torch.stack([0.5 - x[:, 0] + 10 * (x[:, 1] > 0.9), torch.zeros_like(x[:, 0])], 1))
    points, labels = torch.tensor([[0.2, 0.5], [0.2, 1.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    problem = pose(model, points, labels, budget=1000)
    problem.solve(replace(PLAIN, rescue=100, radius=0.05, restarts=10, gain=1e-3))
    assert torch.isfinite(problem.incumbent.distance[:, 0]).tolist() == [True, False]
    first, second = (problem.budget.forwards + problem.budget.backwards).tolist()
    assert second > 998
    assert first == 10 * 80


def test_fewer_than_ten_pairs_are_not_judged() -> None:
    problem = small()
    problem.solve(replace(PLAIN, moves=32, closing=10, radius=0.0, gain=1e-3))  # 11 pairs
    assert (problem.budget.forwards + problem.budget.backwards).tolist() == [65] * 20


def test_saved_passes_are_not_given_to_other_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the passes of a start would depend on the other samples of the batch."""
    seen: list[int] = []
    attempt = ma.MarginAttack.attempt

    def recorded(self: ma.MarginAttack, problem: ma.Problem, x: Tensor, passes: int) -> None:
        seen.append(passes)
        attempt(self, problem, x, passes)

    monkeypatch.setattr(ma.MarginAttack, "attempt", recorded)
    small(budget=603).solve(replace(PLAIN, restarts=3, gain=1e-3))
    assert seen == [201, 201, 201]


@pytest.mark.parametrize("gain", [-0.1, 1.0])
def test_a_gain_out_of_range_raises(gain: float) -> None:
    with pytest.raises(ValueError, match=f"gain is {gain}: it must be at least 0 and below 1"):
        ma.MarginAttack(gain=gain)
