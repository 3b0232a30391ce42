"""Proposals of Race: windows, and a search without gradients."""

import math

import pytest
import torch
from models import Function
from problems import pose
from torch import Tensor

import marginattack as ma
from marginattack.attacks.race.proposals import window
from marginattack.attacks.race.rules import ProposalRule


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 12), (9, 4, 4), (40,), (2, 100), (2, 3, 4, 5)])
@pytest.mark.parametrize("share", [0.001, 0.1, 1.0])
def test_a_window_covers_its_share_with_one_sign_per_channel(shape: tuple[int, ...], share: float) -> None:
    random = torch.rand(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = window(random, torch.tensor([[share]], dtype=torch.float64), torch.Size(shape))
    assert w.shape == (50, math.prod(shape))
    assert set(w.unique().tolist()) <= {-1.0, 0.0, 1.0}
    covered = (w != 0).sum(1)
    assert (covered >= 1).all()
    assert (covered == covered[0]).all()
    assert float(covered[0]) == pytest.approx(share * math.prod(shape), rel=0.3, abs=shape[0])
    if len(shape) == 3:
        for channel in w.unflatten(1, shape).flatten(2).unbind(1):
            assert (channel.amax(1) - channel.amin(1) <= 1).all()


def stairs(x: Tensor) -> Tensor:
    """A constraint that falls in steps with how much brighter the left half is; its gradient is zero everywhere."""
    brighter = x[..., :3].flatten(1).mean(1) - x[..., 3:].flatten(1).mean(1)
    c = 1.5 - (20 * brighter).floor() / 2 + 0 * brighter
    return torch.stack([c + 3, 0 * c + 3], 1).to(x)


def test_proposals_find_nearer_points_without_gradients() -> None:
    """From a brighter left half alone the boundary is 0.2 away, with a darker right half 0.1."""
    x, y = torch.full((3, 1, 6, 6), 0.5, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    problem = pose(Function(stairs), x, y, norm=ma.LINF, budget=1000)
    left = torch.where(torch.arange(6) < 3, 0.75, 0.5).expand(3, 1, 6, 6).flatten(1).double()
    problem.value(left)
    rule = ProposalRule()
    move = rule.move(problem.norm)
    problem.run(move, rule.numbers(999), *move.begin(problem, left))
    assert problem.budget.backwards.tolist() == [0, 0, 0]
    assert problem.budget.left.tolist() == [0, 0, 0]
    distance = problem.incumbent.distance[:, 0]
    assert (distance < 0.13).all()
    assert (distance >= 0.1).all()
    assert len(problem.incumbent.points.unique(dim=0)) == 3  # each sample has windows of its own


def test_race_spends_forwards_on_proposals_where_gradients_are_masked() -> None:
    x, y = torch.full((2, 1, 6, 6), 0.5), torch.zeros(2, dtype=torch.int64)
    found = ma.measure(Function(stairs), x, y, "linf", attack=ma.Race(masked=ma.Race().curved), budget=800)
    assert (found.forwards > found.backwards + 50).all()
