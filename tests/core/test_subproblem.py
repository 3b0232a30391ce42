"""Subproblems and the draws of samples: what they reserve, spend, find and share."""

from contextlib import nullcontext

import pytest
import torch
from models import constant, inputs, smooth
from problems import on_line, pose, small
from torch import Tensor

import marginattack as ma
from marginattack.core import losses
from marginattack.core.budget import UNLIMITED, BudgetExhausted

QUICK = ma.MarginAttack(moves=10, closing=2, follow=1, candidates=2)
RANDOM = ma.MarginAttack(moves=10, closing=2, follow=0, scans=0, restarts=2, radius=0.2)


def test_a_subproblem_hands_back_what_it_spent_and_found() -> None:
    problem = on_line(budget=11)
    with problem.subproblem(torch.tensor([0, 0])) as part:
        assert part.x0.tolist() == [[0.2, 0.5]] * 2
        part.value(torch.tensor([[0.9, 0.5], [0.7, 0.5]], dtype=torch.float64))
        part.value_and_gradient(torch.tensor([[0.8, 0.5], [0.3, 0.5]], dtype=torch.float64))
        assert part.incumbent.distance[:, 0].tolist() == pytest.approx([0.6, 0.5])
        assert problem.budget.forwards.tolist() == [0]
        with pytest.raises(BudgetExhausted):  # each copy has 5, and spent 3
            part.values_and_gradients(part.x0, [losses.MARGIN] * 2)
    assert (problem.budget.forwards.tolist(), problem.budget.backwards.tolist()) == ([4], [2])
    assert problem.incumbent.points.tolist() == [[0.7, 0.5]]
    with pytest.raises(BudgetExhausted):  # 5 are left
        problem.values_and_gradients(problem.x0, [losses.MARGIN] * 5)
    problem.values_and_gradients(problem.x0, [losses.MARGIN] * 4)


def spend_all(problem: ma.Problem) -> None:
    while True:
        problem.value(problem.x0)


def test_parent_and_subproblem_together_never_exceed_the_budget() -> None:
    """What the subproblem may spend is reserved: inside the block the parent has none of it."""
    problem = small(budget=11)
    problem.value(problem.x0)
    with problem.subproblem(torch.tensor([3, 3, 5])) as part:
        assert part.budget.left.tolist() == [5, 5, 10]
        assert problem.budget.left[[3, 4, 5]].tolist() == [0, 10, 0]
        part.value_and_gradient(part.x0)
        problem.value(problem.x0)  # samples 3 and 5 have nothing left
        with part.subproblem(targets=(part.labels + 1) % 4) as nested:
            nested.solve(spend_all)
            part.solve(spend_all)  # has nothing that is not reserved
    spent = problem.budget.forwards + problem.budget.backwards
    assert spent[[3, 4, 5]].tolist() == [11, 2, 11]
    assert (spent + problem.budget.left).tolist() == [11] * 20


@pytest.mark.parametrize("error", [None, BudgetExhausted, ZeroDivisionError])
def test_unspent_passes_come_back_also_after_an_error(error: type[Exception] | None) -> None:
    problem = on_line(budget=11)
    with pytest.raises(error) if error else nullcontext(), problem.subproblem(torch.tensor([0, 0, 0])) as part:
        part.value_and_gradient(part.x0)
        if error:
            raise error
    assert problem.budget.left.tolist() == [5]
    assert problem.budget.remaining_of(torch.tensor([True])) == [5]
    assert (problem.budget.forwards.tolist(), problem.budget.backwards.tolist()) == ([3], [3])


def test_shares_of_no_limit_are_no_limit() -> None:
    problem = on_line()
    with problem.subproblem(torch.tensor([0] * 100)) as part:
        part.value(part.x0)
        assert not part.budget.limited
    assert problem.budget.left.tolist() == [UNLIMITED - 100]
    assert on_line(budget=11).budget.limited


def test_a_subproblem_that_finds_nothing_nearer_changes_nothing() -> None:
    problem = on_line()
    problem.value(torch.tensor([[0.6, 0.5]], dtype=torch.float64))
    with problem.subproblem() as part:
        part.value(torch.tensor([[0.9, 0.5]], dtype=torch.float64))
        assert part.incumbent.distance.item() == pytest.approx(0.7)  # it starts with nothing found
    assert problem.incumbent.distance.item() == pytest.approx(0.4)
    assert problem.incumbent.points.tolist() == [[0.6, 0.5]]


def test_rows_of_a_subproblem_may_come_in_any_order_and_number() -> None:
    problem = small()
    problem.budget.deactivate(torch.arange(20) == 7)
    rows = torch.tensor([3, 7, 1, 3, 3])
    with problem.subproblem(rows) as part:
        c, _ = part.value_and_gradient(part.x0)
        assert c[1].item() == 0
        points = part.x0.roll(1, 0)
        part.value(points)
        nearest = part.incumbent.distance[[0, 3, 4]].min().item()
    expected = torch.zeros(20, dtype=torch.int64)
    expected[[3, 1]] = torch.tensor([6, 2])
    assert problem.budget.forwards.equal(expected)
    assert problem.incumbent.distance[3].item() == nearest
    assert problem.incumbent.distance[0].item() == torch.inf


def test_a_subproblem_with_targets_is_targeted_and_its_points_count_for_the_parent() -> None:
    model = smooth()
    images, labels = inputs(model)
    problem, targets = pose(model, images, labels), (labels + 2) % 4
    alone = pose(model, images, labels, targets=targets)
    with problem.subproblem(targets=targets) as towards:
        towards.solve(QUICK)
        assert towards.targeted
    alone.solve(QUICK)
    assert problem.incumbent.distance.equal(alone.incumbent.distance)
    assert bool(torch.isfinite(problem.incumbent.distance).any())
    assert not problem.targeted


def test_copies_of_a_sample_draw_different_numbers_and_the_first_those_of_the_sample() -> None:
    plain, problem = small().draws.uniform(), small()
    with problem.subproblem(torch.tensor([4, 4, 2])) as part:
        draws = part.draws.uniform()
    assert (problem.draws.uniform() != plain).all()  # new ones after the block
    assert draws[0].equal(plain[4])
    assert draws[2].equal(plain[2])
    assert (draws[0] != draws[1]).all()


@pytest.mark.parametrize("inner", [None, torch.tensor([1, 0])])
def test_copies_still_differ_in_a_nested_subproblem(inner: Tensor | None) -> None:
    with small().subproblem(torch.tensor([4, 4])) as part, part.subproblem(inner) as again:
        draws = again.draws.uniform()
    assert (draws[0] != draws[1]).any()


def test_a_sample_attacked_by_itself_does_not_depend_on_its_batch() -> None:
    model = smooth()
    images, labels = inputs(model)

    def attack(problem: ma.Problem) -> None:
        assert len(problem.x0) == 1
        for _ in range(1 + int(problem.x0[0, 0] * 10)):  # some draw more often than others
            problem.draws.uniform()
        RANDOM(problem)

    together = pose(model, images, labels)
    together.for_each_sample(attack)
    later = together.draws.uniform()
    for i in (0, 7, 19):
        alone = pose(model, images[i : i + 1], labels[i : i + 1], ids=[i])
        alone.for_each_sample(attack)
        # up to rounding: the decision tolerance is calibrated per batch
        torch.testing.assert_close(alone.incumbent.points[0], together.incumbent.points[i], rtol=1e-12, atol=1e-12)
        assert alone.budget.forwards[0] == together.budget.forwards[i]
        assert alone.draws.uniform()[0].equal(later[i])


def test_draws_belong_to_seed_and_sample_and_not_to_the_batch() -> None:
    model = smooth()
    images, labels = inputs(model)
    every_sample = pose(model, images, labels, seed=3)
    first, second = every_sample.draws.uniform(), every_sample.draws.uniform()
    part = pose(model, images[[12, 5]], labels[[12, 5]], ids=[12, 5], seed=3)
    assert part.draws.uniform().equal(first[[12, 5]])
    assert part.draws.uniform().equal(second[[12, 5]])
    every = [first, second, pose(model, images, labels, seed=4).draws.uniform()]
    assert len({row for block in every for row in map(tuple, block.tolist())}) == 60


@pytest.mark.parametrize("seed", [0, 1, -5, 2**40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_uniform_and_not_correlated(seed: int, dtype: torch.dtype) -> None:
    images = torch.zeros(300, 400, dtype=dtype)
    problem = pose(constant(2.0, 0.0), images, torch.zeros(300, dtype=torch.int64), seed=seed)
    u, v = problem.draws.uniform(), problem.draws.uniform()
    assert u.dtype == dtype
    assert ((u >= 0) & (u < 1)).all()
    n = u.numel() ** 0.5
    assert u.mean().item() == pytest.approx(0.5, abs=4 * 12**-0.5 / n)
    assert u.var().item() == pytest.approx(1 / 12, abs=4 * 180**-0.5 / n)
    pairs: list[tuple[Tensor, Tensor]] = [(u[:, 1:], u[:, :-1]), (u[1:], u[:-1]), (u, v)]
    for a, b in pairs:
        assert abs(float(((a - 0.5) * (b - 0.5)).mean() * 12)) < 5 / n
