"""Parts of a problem and the draws of its samples: what they spend, find and share."""

import pytest
import torch
from models import constant, inputs, smooth
from problems import on_line, posed, small
from torch import Tensor

import marginattack as ma
from marginattack.core import losses
from marginattack.core.problem import Finished

QUICK = ma.MarginAttack(moves=10, closing=2, follow=1, candidates=2)
RANDOM = ma.MarginAttack(moves=10, closing=2, follow=0, scans=0, restarts=2, radius=0.2)


def test_a_part_gives_what_it_spent_and_found_to_the_whole() -> None:
    problem = on_line(budget=11)
    with problem.take(torch.tensor([0, 0])) as part:
        assert part.x0.tolist() == [[0.2, 0.5]] * 2
        part.value(torch.tensor([[0.9, 0.5], [0.7, 0.5]], dtype=torch.float64))
        part.c(torch.tensor([[0.8, 0.5], [0.3, 0.5]], dtype=torch.float64))
        assert part.distance[:, 0].tolist() == pytest.approx([0.6, 0.5])
        assert problem.forwards.tolist() == [0]
        with pytest.raises(Finished):  # each copy has 5, and spent 3
            part.looks(part.x0, [losses.MARGIN] * 2)
    assert (problem.forwards.tolist(), problem.backwards.tolist()) == ([4], [2])
    assert problem.best.tolist() == [[0.7, 0.5]]
    with pytest.raises(Finished):  # 5 are left
        problem.looks(problem.x0, [losses.MARGIN] * 5)
    problem.looks(problem.x0, [losses.MARGIN] * 4)


def test_a_part_that_finds_nothing_nearer_changes_nothing() -> None:
    problem = on_line()
    problem.value(torch.tensor([[0.6, 0.5]], dtype=torch.float64))
    with problem.take() as part:
        part.value(torch.tensor([[0.9, 0.5]], dtype=torch.float64))
        assert part.distance.item() == pytest.approx(0.7)  # it starts with nothing found
    assert problem.distance.item() == pytest.approx(0.4)
    assert problem.best.tolist() == [[0.6, 0.5]]


def test_rows_of_a_part_may_come_in_any_order_and_number() -> None:
    problem = small()
    problem.drop(torch.arange(20) == 7)
    rows = torch.tensor([3, 7, 1, 3, 3])
    with problem.take(rows) as part:
        c, _ = part.c(part.x0)
        assert c[1].item() == 0
        points = part.x0.roll(1, 0)
        part.value(points)
        nearest = part.distance[[0, 3, 4]].min().item()
    expected = torch.zeros(20, dtype=torch.int64)
    expected[[3, 1]] = torch.tensor([6, 2])
    assert problem.forwards.equal(expected)
    assert problem.distance[3].item() == nearest
    assert problem.distance[0].item() == torch.inf


def test_a_part_with_targets_is_a_targeted_problem_whose_points_count_for_the_whole() -> None:
    model = smooth()
    images, labels = inputs(model)
    problem, targets = posed(model, images, labels), (labels + 2) % 4
    alone = posed(model, images, labels, targets=targets)
    with problem.take(targets=targets) as towards:
        towards.solve(QUICK)
        assert towards.targeted
    alone.solve(QUICK)
    assert problem.distance.equal(alone.distance)
    assert bool(torch.isfinite(problem.distance).any())
    assert not problem.targeted


def test_copies_of_a_sample_draw_different_numbers_and_the_first_those_of_the_sample() -> None:
    plain = small().uniform()
    with small().take(torch.tensor([4, 4, 2])) as part:
        draws = part.uniform()
    assert draws[0].equal(plain[4])
    assert draws[2].equal(plain[2])
    assert (draws[0] != draws[1]).all()


@pytest.mark.parametrize("inner", [None, torch.tensor([1, 0])])
def test_copies_still_differ_in_a_part_of_the_part(inner: Tensor | None) -> None:
    with small().take(torch.tensor([4, 4])) as part, part.take(inner) as again:
        draws = again.uniform()
    assert (draws[0] != draws[1]).any()


def test_after_a_part_the_draws_are_new() -> None:
    problem = small()
    with problem.take() as part:
        first = part.uniform()
    assert (problem.uniform() != first).all()


def test_each_sample_alone_is_the_same_in_any_company() -> None:
    model = smooth()
    images, labels = inputs(model)

    def attack(problem: ma.Problem) -> None:
        assert len(problem.x0) == 1
        for _ in range(1 + int(problem.x0[0, 0] * 10)):  # some draw more often than others
            problem.uniform()
        RANDOM(problem)

    together = posed(model, images, labels)
    together.each(attack)
    later = together.uniform()
    for i in (0, 7, 19):
        alone = posed(model, images[i : i + 1], labels[i : i + 1], ids=[i])
        alone.each(attack)
        assert alone.best[0].equal(together.best[i])
        assert alone.forwards[0] == together.forwards[i]
        assert alone.uniform()[0].equal(later[i])


def test_draws_belong_to_seed_and_sample_and_not_to_the_batch() -> None:
    model = smooth()
    images, labels = inputs(model)
    whole = posed(model, images, labels, seed=3)
    first, second = whole.uniform(), whole.uniform()
    part = posed(model, images[[12, 5]], labels[[12, 5]], ids=[12, 5], seed=3)
    assert part.uniform().equal(first[[12, 5]])
    assert part.uniform().equal(second[[12, 5]])
    every = [first, second, posed(model, images, labels, seed=4).uniform()]
    assert len({row for block in every for row in map(tuple, block.tolist())}) == 60


@pytest.mark.parametrize("seed", [0, 1, -5, 2**40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_uniform_and_not_correlated(seed: int, dtype: torch.dtype) -> None:
    images = torch.zeros(300, 400, dtype=dtype)
    problem = posed(constant(2.0, 0.0), images, torch.zeros(300, dtype=torch.int64), seed=seed)
    u, v = problem.uniform(), problem.uniform()
    assert u.dtype == dtype
    assert ((u >= 0) & (u < 1)).all()
    n = u.numel() ** 0.5
    assert u.mean().item() == pytest.approx(0.5, abs=4 * 12**-0.5 / n)
    assert u.var().item() == pytest.approx(1 / 12, abs=4 * 180**-0.5 / n)
    pairs: list[tuple[Tensor, Tensor]] = [(u[:, 1:], u[:, :-1]), (u[1:], u[:-1]), (u, v)]
    for a, b in pairs:
        assert abs(float(((a - 0.5) * (b - 0.5)).mean() * 12)) < 5 / n
