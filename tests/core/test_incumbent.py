"""Incumbents and their history: the best distance against the passes spent."""

import pytest
import torch
from models import inputs, smooth
from problems import pose

import marginattack as ma
from marginattack.attacks import ATTACKS
from marginattack.core.incumbent import GRID, RATIO, History

INF = torch.inf


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_the_curve_falls_when_something_nearer_is_found_and_never_rises() -> None:
    history = History(2, torch.zeros(2, 3))
    rows = torch.arange(2)
    history.record(rows, torch.tensor([2, 2]), column(INF, 5.0))
    history.record(rows, torch.tensor([2, 2]), column(3.0, 7.0))
    history.record(rows[:1], torch.tensor([96]), column(1.0))
    assert history.passes.tolist() == [100, 4]
    assert history.distance.tolist() == [1.0, 5.0]
    at = {passes: history.curve[:, int((passes - 1e-6 > GRID).sum())].tolist() for passes in (1, 2, 4, 50, 100)}
    assert at == {1: [INF, INF], 2: [INF, 5.0], 4: [3.0, 5.0], 50: [3.0, 5.0], 100: [1.0, 5.0]}


def test_attempts_side_by_side_share_passes_and_the_best_distance() -> None:
    history = History(2, torch.zeros(2, 3))
    history.record(torch.tensor([1, 1, 0]), torch.tensor([2, 2, 2]), column(4.0, 2.0, 9.0))
    assert history.passes.tolist() == [2, 4]
    assert history.distance.tolist() == [9.0, 2.0]


@pytest.mark.parametrize("passes", [1, 10, 100, 1000])
def test_the_distance_at_a_share_of_the_passes_is_known_within_the_grid(passes: int) -> None:
    history = History(1, torch.zeros(1, 3))
    for k in range(passes):
        history.record(torch.tensor([0]), torch.tensor([1]), column(1.0 / (k + 1)))
    known = 1.0 / history.distance_at(0.9)[0]  # how many passes were spent by then
    assert max(1.0, 0.9 * passes / RATIO - 1) <= known <= max(1.0, 0.9 * passes)


def test_the_history_ends_with_the_passes_and_the_incumbent() -> None:
    model = smooth()
    images, labels = inputs(model)
    for name in ("marginattack", "deepfool", "cw"):
        attack = ATTACKS[name]()
        problem = pose(model, images, labels, budget=60)
        problem.solve(attack)
        history, distance = problem.incumbent.history, problem.incumbent.distance[:, 0]
        assert history.passes.equal(problem.budget.forwards + problem.budget.backwards), name
        assert history.distance.equal(distance), name
        assert history.curve[:, -1].equal(distance), name


def test_distance_at_90pct_is_what_fewer_passes_had_found() -> None:
    model = smooth()
    images, labels = inputs(model)
    full = ma.measure(model, images, labels, attack=ma.MarginAttack(moves=6, closing=2, follow=0, scans=0))
    assert (full.distance_at_90pct >= full.distance).all()
    assert (full.distance_at_90pct > full.distance).any()
    wrong = ma.measure(model, images, (labels + 1) % 4, attack=ma.MarginAttack(moves=40), diagnose=False)
    assert (wrong.distance_at_90pct == 0).all()
