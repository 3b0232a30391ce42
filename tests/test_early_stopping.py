"""MarginAttack with ``gain``: whom ten pairs of moves brought next to nothing is left alone."""

from dataclasses import replace

import pytest
import torch
from models import Function, inputs, smooth
from problems import posed
from torch import Tensor

import marginattack as ma
from marginattack.core.schedules import Power

PLAIN = ma.MarginAttack(follow=0, scans=0, moves=220, closing=20, rescue=0, radius=0.1, beta=Power(0.5))


def made(budget: int | None = None) -> ma.Problem:
    model = smooth(d=6)
    return posed(model, *inputs(model, (6,)), budget=budget)


def test_early_stopping_leaves_alone_whom_ten_pairs_brought_nothing() -> None:
    attack = replace(PLAIN, restarts=2)
    whole, early = made(), made()
    whole.solve(attack)
    early.solve(replace(attack, gain=1e-8))
    passes = early.forwards + early.backwards
    assert len(set(passes.tolist())) > 2  # each sample has an end of its own
    assert (passes % 40 == 0).all()  # after some ten pairs, without closing moves
    assert passes.max() < 0.5 * (whole.forwards + whole.backwards).min()
    torch.testing.assert_close(early.distance, whole.distance, rtol=1e-6, atol=0)


def test_early_stopping_goes_on_when_others_have_spent_their_budget() -> None:
    """The second sample never crosses and pays for every move; the first has budget left for all ten starts."""
    model = Function(lambda x: torch.stack([0.5 - x[:, 0] + 10 * (x[:, 1] > 0.9), torch.zeros_like(x[:, 0])], 1))
    points, labels = torch.tensor([[0.2, 0.5], [0.2, 1.0]], dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    problem = posed(model, points, labels, budget=1000)
    problem.solve(replace(PLAIN, rescue=100, radius=0.05, restarts=10, gain=1e-3))
    assert torch.isfinite(problem.distance[:, 0]).tolist() == [True, False]
    first, second = (problem.forwards + problem.backwards).tolist()
    assert second > 998
    assert first == 10 * 80


def test_early_stopping_judges_ten_pairs_and_not_fewer() -> None:
    problem = made()
    problem.solve(replace(PLAIN, moves=32, closing=10, radius=0.0, gain=1e-3))  # 11 pairs
    assert (problem.forwards + problem.backwards).tolist() == [65] * 20


def test_what_early_stopping_saves_is_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what a sample may spend on a start would depend on who is measured with it."""
    seen: list[int] = []
    attempt = ma.MarginAttack.attempt

    def watched(self: ma.MarginAttack, problem: ma.Problem, x: Tensor, passes: int) -> None:
        seen.append(passes)
        attempt(self, problem, x, passes)

    monkeypatch.setattr(ma.MarginAttack, "attempt", watched)
    made(budget=603).solve(replace(PLAIN, restarts=3, gain=1e-3))
    assert seen == [201, 201, 201]


@pytest.mark.parametrize("gain", [-0.1, 1.0])
def test_a_gain_that_is_no_share_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match="gain is below 1"):
        ma.MarginAttack(gain=gain)
