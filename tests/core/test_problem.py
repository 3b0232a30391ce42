"""Problem: values and gradients, passes, incumbents and finished samples, against counters and formulas of our own."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import Function, constant, inputs, smooth
from problems import on_line, pose, small
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import ATTACKS, Attack, DeepFool
from marginattack.core import losses
from marginattack.core.budget import BudgetExhausted

QUICK = ma.MarginAttack(moves=10, closing=2, follow=1, candidates=2)
RANDOM = ma.MarginAttack(moves=10, closing=2, follow=0, scans=0, restarts=2, radius=0.2)


class Counting(nn.Module):
    """A model whose last pixel is only a name, by which forwards and backwards of each sample are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.net = smooth()
        self.forwards: Counter[int] = Counter()
        self.backwards: Counter[int] = Counter()

    def forward(self, x: Tensor) -> Tensor:
        names = [round(name * 100) for name in x[:, -1].tolist()]
        self.forwards.update(names)
        if x.requires_grad:
            x.register_hook(lambda gradient: self.backwards.update(names))
        logits: Tensor = self.net(x[:, :-1])
        return logits


def counting(n: int = 12, **settings: Any) -> tuple[Counting, ma.Problem]:
    model = Counting()
    x, y = inputs(model.net, n=n)
    problem = pose(model, torch.cat([x, torch.arange(n)[:, None] / 100], 1), y, **settings)
    model.forwards.clear()
    return model, problem


def check_counts(model: Counting, problem: ma.Problem) -> None:
    n = len(problem.x0)
    assert problem.budget.forwards.tolist() == [model.forwards[i] for i in range(n)]
    assert problem.budget.backwards.tolist() == [model.backwards[i] for i in range(n)]


ONCE: list[Attack] = [QUICK, RANDOM, DeepFool(steps=4), ATTACKS["fgsm"]()]


@pytest.mark.parametrize("attack", ONCE, ids=lambda attack: type(attack).__name__)
@pytest.mark.parametrize("budget", [None, 7])
@pytest.mark.parametrize("batch_size", [5, 512])
def test_counted_passes_are_those_of_the_model(attack: Attack, budget: int | None, batch_size: int) -> None:
    model, problem = counting(budget=budget, batch_size=batch_size)
    if isinstance(attack, ma.MarginAttack) and attack.radius:  # names must not change
        problem.draws.uniform = lambda width=None: torch.full_like(problem.x0, 0.5)  # type: ignore[method-assign]
    problem.solve(attack)
    assert sum(model.forwards.values()) > 0
    check_counts(model, problem)


@pytest.mark.parametrize("budget", [2, 3, 5])
def test_a_query_that_is_not_affordable_is_not_made(budget: int) -> None:
    model, problem = counting(n=4, budget=budget)
    with pytest.raises(BudgetExhausted):
        problem.values_and_gradients(problem.x0, [losses.MARGIN] * budget)  # budget + 1 passes
    assert sum(model.forwards.values()) == 0
    problem.values_and_gradients(problem.x0, [losses.MARGIN] * (budget - 1))
    assert (problem.budget.forwards + problem.budget.backwards).tolist() == [budget] * 4
    check_counts(model, problem)


def test_the_incumbent_is_the_nearest_adversarial_point_inside_the_box() -> None:
    problem = on_line()

    def incumbent_after(*point: float) -> tuple[list[float], float]:
        problem.value(torch.tensor([point], dtype=torch.float64))
        return problem.incumbent.points[0].tolist(), round(problem.incumbent.distance.item(), 9)

    start, none = [0.2, 0.5], float("inf")
    assert incumbent_after(0.4, 0.5) == (start, none)  # not adversarial
    assert incumbent_after(0.8, 1.01) == (start, none)  # outside
    assert incumbent_after(1.01, 0.5) == (start, none)
    assert incumbent_after(0.8, 0.5) == ([0.8, 0.5], 0.6)
    assert incumbent_after(0.9, 0.5) == ([0.8, 0.5], 0.6)  # farther
    assert incumbent_after(0.6, 0.5) == ([0.6, 0.5], 0.4)
    assert incumbent_after(0.3, 0.5) == ([0.6, 0.5], 0.4)


@pytest.mark.parametrize("loss", [losses.MARGIN, losses.CROSS_ENTROPY, losses.OWN], ids=repr)
@pytest.mark.parametrize("offset", [-100.0, 0.0, 100.0])
def test_a_point_is_adversarial_by_its_prediction_whatever_the_loss(loss: losses.Loss, offset: float) -> None:
    for first, found in ((0.4, False), (0.6, True)):
        problem = on_line()
        problem.value_and_gradient(torch.tensor([[first, 0.5]], dtype=torch.float64), offset=offset, loss=loss)
        assert bool(torch.isfinite(problem.incumbent.distance)) is found


def test_a_difference_of_logits_within_rounding_does_not_count() -> None:
    for by, found in ((1e-7, False), (1e-4, True)):
        model = Function(lambda x, by=by: torch.stack([x[:, 0] * 0 + 1, x[:, 0] * 0 + 1 + by], 1))  # type: ignore[misc]
        problem = pose(model, torch.rand(1, 2), torch.tensor([0]))
        c = problem.value(problem.x0)
        assert bool(torch.isfinite(problem.incumbent.distance)) is found
        assert bool(c < 0) is found


def by_hand(model: nn.Module, x: Tensor, label: Tensor, target: Tensor | None, offset: float) -> tuple[Tensor, Tensor]:
    """C and ∇c, row by row."""
    values, gradients = [], []
    for i in range(len(x)):
        leaf = x[i].clone().requires_grad_()
        logits = model(leaf[None])[0]
        own = int(label[i] if target is None else target[i])
        rest = torch.cat([logits[:own], logits[own + 1 :]]).max()
        c = (logits[own] - rest if target is None else rest - logits[own]) - offset
        values.append(c.detach())
        gradients.append(torch.autograd.grad(c, leaf)[0])
    return torch.stack(values)[:, None], torch.stack(gradients)


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("offset", [0.0, -0.01])
def test_c_and_its_gradient_are_those_of_the_paper(targeted: bool, offset: float) -> None:
    model = smooth()
    images, labels = inputs(model)
    targets = (labels + 1) % 4 if targeted else None
    problem = pose(model, images, labels, targets=targets)
    x = torch.rand(images.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    c, g = problem.value_and_gradient(x, offset=offset)
    value, gradient = by_hand(model, x, labels, targets, offset)
    torch.testing.assert_close(c, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(g, gradient)
    assert problem.value(x, offset=offset).equal(c)


@pytest.mark.parametrize("targeted", [False, True])
def test_c_is_negative_exactly_where_the_point_is_adversarial(targeted: bool) -> None:
    model = smooth(dtype=torch.float32)
    images, labels = inputs(model, n=500)
    targets = (labels + 1) % 4 if targeted else None
    problem = pose(model, images, labels, targets=targets)
    x = images.roll(1, 0)
    c = problem.value(x)[:, 0]
    found = torch.isfinite(problem.incumbent.distance[:, 0])
    assert 0 < int(found.sum()) < 500
    assert (c < 0).equal(found)
    prediction = model(x).argmax(1)
    assert found.equal(prediction != labels if targets is None else prediction == targets)


def test_finished_samples_cost_nothing_and_are_answered_by_zeros() -> None:
    model, problem = counting(n=6)
    finished = torch.tensor([True, False, False, True, False, False])
    problem.budget.deactivate(finished)
    c, g = problem.value_and_gradient(problem.x0)
    assert problem.budget.forwards.tolist() == [0, 1, 1, 0, 1, 1]
    check_counts(model, problem)
    assert not c[finished].any()
    assert not g[finished].any()
    assert c[~finished].all()
    problem.budget.deactivate(torch.zeros(6, dtype=torch.bool))  # nothing is undone
    problem.value(problem.x0)
    assert problem.budget.forwards.tolist() == [0, 2, 2, 0, 2, 2]


def test_an_attack_ends_when_all_samples_are_finished() -> None:
    problem = small()
    continued: list[str] = []

    def attack(problem: ma.Problem) -> None:
        problem.budget.deactivate(torch.ones(20, dtype=torch.bool))
        problem.value(problem.x0)
        continued.append("after the last sample")

    problem.solve(attack)
    assert not continued
    assert problem.budget.forwards.sum() == 0


def test_a_mask_and_what_is_deactivated_under_it_end_with_the_block() -> None:
    problem = small()
    with problem.masked(torch.arange(20) < 5) as view:
        view.value(problem.x0)
        view.budget.deactivate(torch.arange(20) < 3)
        view.value(problem.x0)
    assert problem.budget.forwards.tolist() == [1] * 3 + [2] * 2 + [0] * 15
    problem.value(problem.x0)
    assert problem.budget.forwards.tolist() == [2] * 3 + [3] * 2 + [1] * 15


def test_a_masked_block_without_samples_ends_early_and_the_attack_continues() -> None:
    problem = small()
    reached: list[str] = []
    with problem.masked(torch.zeros(20, dtype=torch.bool)) as view:
        view.value(problem.x0)
        reached.append("inside")
    problem.value(problem.x0)
    assert not reached
    assert problem.budget.forwards.tolist() == [1] * 20


def test_class_constraints_are_those_of_the_highest_other_classes() -> None:
    model = smooth()
    images, labels = inputs(model)
    problem = pose(model, images, labels)
    logits = model(images).detach()
    constraints = problem.class_constraints(images, most=2, offset=-0.5)
    assert (problem.budget.forwards.unique().tolist(), problem.budget.backwards.unique().tolist()) == ([1], [2])
    order = logits.scatter(1, labels[:, None], -torch.inf).argsort(1, descending=True)
    rows = torch.arange(20)
    for rank, (label, c, g) in enumerate(constraints):
        assert label.equal(order[:, rank])
        torch.testing.assert_close(c[:, 0], logits[rows, labels] - logits[rows, label] + 0.5)
        leaf = images.clone().requires_grad_()
        out = model(leaf)
        torch.testing.assert_close(g, torch.autograd.grad((out[rows, labels] - out[rows, label]).sum(), leaf)[0])
    assert [label.tolist() for label in problem.highest_classes(images, most=2)] == order.T[:2].tolist()
    assert (problem.budget.forwards.unique().tolist(), problem.budget.backwards.unique().tolist()) == ([2], [2])
    assert len(problem.class_constraints(images, most=99)) == len(problem.highest_classes(images, most=99)) == 3


def test_a_targeted_problem_has_one_class_constraint() -> None:
    problem = small(targets=(inputs(smooth())[1] + 1) % 4)
    (label, c, g), (ranked,) = (
        problem.class_constraints(problem.x0, most=3)[0],
        problem.highest_classes(problem.x0, most=3),
    )
    assert label.equal(ranked)
    expected = problem.value_and_gradient(problem.x0)
    assert c.equal(expected[0])
    assert g.equal(expected[1])
    assert problem.budget.backwards.tolist() == [2] * 20


def bent(x: Tensor) -> Tensor:
    """A slope that is infinite where the first pixel is a half, and not a number at that of the second."""
    return torch.stack([1 + (x[:, 0] - 0.5).abs().sqrt() + 0 * (x[:, 1] - 0.5).abs().sqrt(), x[:, 2]], 1)


SLOPES: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    "no slope at all": (constant(2.0, 0.0).function, [0.0, 0.0, 0.0]),
    "a slope of zero": (lambda x: 0 * x + torch.tensor([2.0, 0.0, 0.0]), [0.0, 0.0, 0.0]),
    "no finite slope": (bent, [0.0, 0.0, -1.0]),
}


@pytest.mark.parametrize(("function", "slope"), SLOPES.values(), ids=SLOPES)
def test_gradients_that_are_missing_or_not_finite_are_zero(
    function: Callable[[Tensor], Tensor], slope: list[float]
) -> None:
    problem = pose(Function(function), torch.full((2, 3), 0.5), torch.tensor([0, 0]))
    c, g = problem.value_and_gradient(problem.x0)
    assert (c > 0).all()
    assert g.tolist() == [slope] * 2
    problem.solve(QUICK)
    assert torch.isfinite(problem.incumbent.points).all()
