"""Problem: what it counts, keeps, leaves out and hands to attacks, against counters and formulas of the tests' own."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import Function, constant, inputs, smooth
from problems import on_line, posed, small
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import ATTACKS, Attack, DeepFool
from marginattack.core import losses
from marginattack.core.problem import Finished

QUICK = ma.MarginAttack(moves=10, closing=2, follow=1, candidates=2)
RANDOM = ma.MarginAttack(moves=10, closing=2, follow=0, scans=0, restarts=2, radius=0.2)


class Watched(nn.Module):
    """A model whose last pixel is only a name, by which rows of forwards and backwards are counted."""

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


def watched(n: int = 12, **settings: Any) -> tuple[Watched, ma.Problem]:
    model = Watched()
    x, y = inputs(model.net, n=n)
    problem = posed(model, torch.cat([x, torch.arange(n)[:, None] / 100], 1), y, **settings)
    model.forwards.clear()
    return model, problem


def agree(model: Watched, problem: ma.Problem) -> None:
    n = len(problem.x0)
    assert problem.forwards.tolist() == [model.forwards[i] for i in range(n)]
    assert problem.backwards.tolist() == [model.backwards[i] for i in range(n)]


ONCE: list[Attack] = [QUICK, RANDOM, DeepFool(steps=4), ATTACKS["fgsm"]()]


@pytest.mark.parametrize("attack", ONCE, ids=lambda attack: type(attack).__name__)
@pytest.mark.parametrize("budget", [None, 7])
@pytest.mark.parametrize("chunk", [5, 512])
def test_passes_are_counted_as_the_model_sees_them(attack: Attack, budget: int | None, chunk: int) -> None:
    model, problem = watched(budget=budget, chunk=chunk)
    if isinstance(attack, ma.MarginAttack) and attack.radius:  # names must not be shaken
        problem.uniform = lambda: torch.full_like(problem.x0, 0.5)  # type: ignore[method-assign]
    problem.solve(attack)
    assert sum(model.forwards.values()) > 0
    agree(model, problem)


@pytest.mark.parametrize("attack", [QUICK, DeepFool(steps=8)], ids=["MarginAttack", "DeepFool"])
def test_no_budget_is_exceeded_by_a_single_pass(attack: Attack) -> None:
    for budget in range(1, 41):
        model, problem = watched(n=4, budget=budget)
        problem.solve(attack)
        agree(model, problem)
        assert (problem.forwards + problem.backwards).max() <= budget


@pytest.mark.parametrize("budget", [2, 3, 5])
def test_a_look_that_is_not_affordable_is_not_taken(budget: int) -> None:
    model, problem = watched(n=4, budget=budget)
    with pytest.raises(Finished):
        problem.looks(problem.x0, [losses.MARGIN] * budget)  # budget + 1 passes
    assert sum(model.forwards.values()) == 0
    problem.looks(problem.x0, [losses.MARGIN] * (budget - 1))
    assert (problem.forwards + problem.backwards).tolist() == [budget] * 4
    agree(model, problem)


def test_the_nearest_adversarial_point_inside_the_box_is_kept() -> None:
    problem = on_line()

    def best_after(*point: float) -> tuple[list[float], float]:
        problem.value(torch.tensor([point], dtype=torch.float64))
        return problem.best[0].tolist(), round(problem.distance.item(), 9)

    start, none = [0.2, 0.5], float("inf")
    assert best_after(0.4, 0.5) == (start, none)  # not adversarial
    assert best_after(0.8, 1.01) == (start, none)  # outside
    assert best_after(1.01, 0.5) == (start, none)
    assert best_after(0.8, 0.5) == ([0.8, 0.5], 0.6)
    assert best_after(0.9, 0.5) == ([0.8, 0.5], 0.6)  # farther
    assert best_after(0.6, 0.5) == ([0.6, 0.5], 0.4)
    assert best_after(0.3, 0.5) == ([0.6, 0.5], 0.4)


@pytest.mark.parametrize("of", [losses.MARGIN, losses.CROSS_ENTROPY, losses.OWN], ids=repr)
@pytest.mark.parametrize("offset", [-100.0, 0.0, 100.0])
def test_what_counts_is_the_argmax_whatever_is_descended(of: losses.Belief, offset: float) -> None:
    for first, found in ((0.4, False), (0.6, True)):
        problem = on_line()
        problem.c(torch.tensor([[first, 0.5]], dtype=torch.float64), offset=offset, of=of)
        assert bool(torch.isfinite(problem.distance)) is found


def test_a_lead_that_rounding_can_make_does_not_count() -> None:
    for lead, found in ((1e-7, False), (1e-4, True)):
        model = Function(lambda x, lead=lead: torch.stack([x[:, 0] * 0 + 1, x[:, 0] * 0 + 1 + lead], 1))  # type: ignore[misc]
        problem = posed(model, torch.rand(1, 2), torch.tensor([0]))
        c = problem.value(problem.x0)
        assert bool(torch.isfinite(problem.distance)) is found
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
    problem = posed(model, images, labels, targets=targets)
    x = torch.rand(images.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    c, g = problem.c(x, offset=offset)
    value, gradient = by_hand(model, x, labels, targets, offset)
    torch.testing.assert_close(c, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(g, gradient)
    assert problem.value(x, offset=offset).equal(c)


@pytest.mark.parametrize("targeted", [False, True])
def test_c_is_negative_exactly_where_the_point_is_adversarial(targeted: bool) -> None:
    model = smooth(dtype=torch.float32)
    images, labels = inputs(model, n=500)
    targets = (labels + 1) % 4 if targeted else None
    problem = posed(model, images, labels, targets=targets)
    x = images.roll(1, 0)
    c = problem.value(x)[:, 0]
    found = torch.isfinite(problem.distance[:, 0])
    assert 0 < int(found.sum()) < 500
    assert (c < 0).equal(found)
    prediction = model(x).argmax(1)
    assert found.equal(prediction != labels if targets is None else prediction == targets)


def test_finished_samples_cost_nothing_and_look_like_zeros() -> None:
    model, problem = watched(n=6)
    gone = torch.tensor([True, False, False, True, False, False])
    problem.drop(gone)
    c, g = problem.c(problem.x0)
    assert problem.forwards.tolist() == [0, 1, 1, 0, 1, 1]
    agree(model, problem)
    assert not c[gone].any()
    assert not g[gone].any()
    assert c[~gone].all()
    problem.drop(torch.zeros(6, dtype=torch.bool))  # nothing is undone
    problem.value(problem.x0)
    assert problem.forwards.tolist() == [0, 2, 2, 0, 2, 2]


def test_when_all_have_finished_the_attack_ends() -> None:
    problem = small()
    went_on: list[str] = []

    def attack(problem: ma.Problem) -> None:
        problem.drop(torch.ones(20, dtype=torch.bool))
        problem.value(problem.x0)
        went_on.append("no")

    problem.solve(attack)
    assert not went_on
    assert problem.forwards.sum() == 0


def test_only_ends_with_its_block_and_takes_its_drops_along() -> None:
    problem = small()
    wanted = torch.arange(20) < 5
    with problem.only(wanted):
        problem.value(problem.x0)
        problem.drop(torch.arange(20) < 3)
        problem.value(problem.x0)
    assert problem.forwards.tolist() == [1] * 3 + [2] * 2 + [0] * 15
    problem.value(problem.x0)
    assert problem.forwards.tolist() == [2] * 3 + [3] * 2 + [1] * 15


def test_where_none_can_go_on_only_ends_early_and_not_the_attack() -> None:
    problem = small()
    reached: list[str] = []
    with problem.only(torch.zeros(20, dtype=torch.bool)):
        problem.value(problem.x0)
        reached.append("inside")
    problem.value(problem.x0)
    assert not reached
    assert problem.forwards.tolist() == [1] * 20


def test_rivals_are_the_highest_other_classes_with_their_own_constraints() -> None:
    model = smooth()
    images, labels = inputs(model)
    problem = posed(model, images, labels)
    logits = model(images).detach()
    rivals = problem.rivals(images, most=2, offset=-0.5)
    assert (problem.forwards.unique().tolist(), problem.backwards.unique().tolist()) == ([1], [2])
    order = logits.scatter(1, labels[:, None], -torch.inf).argsort(1, descending=True)
    rows = torch.arange(20)
    for rank, (label, c, g) in enumerate(rivals):
        assert label.equal(order[:, rank])
        torch.testing.assert_close(c[:, 0], logits[rows, labels] - logits[rows, label] + 0.5)
        leaf = images.clone().requires_grad_()
        out = model(leaf)
        torch.testing.assert_close(g, torch.autograd.grad((out[rows, labels] - out[rows, label]).sum(), leaf)[0])
    assert [label.tolist() for label in problem.ranking(images, most=2)] == order.T[:2].tolist()
    assert (problem.forwards.unique().tolist(), problem.backwards.unique().tolist()) == ([2], [2])
    assert len(problem.rivals(images, most=99)) == len(problem.ranking(images, most=99)) == 3


def test_towards_a_target_there_is_one_rival() -> None:
    problem = small(targets=(inputs(smooth())[1] + 1) % 4)
    (label, c, g), (ranked,) = problem.rivals(problem.x0, most=3)[0], problem.ranking(problem.x0, most=3)
    assert label.equal(ranked)
    expected = problem.c(problem.x0)
    assert c.equal(expected[0])
    assert g.equal(expected[1])
    assert problem.backwards.tolist() == [2] * 20


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
    problem = posed(Function(function), torch.full((2, 3), 0.5), torch.tensor([0, 0]))
    c, g = problem.c(problem.x0)
    assert (c > 0).all()
    assert g.tolist() == [slope] * 2
    problem.solve(QUICK)
    assert torch.isfinite(problem.best).all()
