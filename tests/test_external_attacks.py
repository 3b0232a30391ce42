"""Attacks of other libraries: each sample keeps its own passes and points."""

from typing import Any

import pytest
import torch
from external_stub import external_stub
from models import inputs, smooth
from problems import pose
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.external import EXTERNAL_ATTACKS, external_attack
from marginattack.attacks.external.base import ExternalAttack, ProblemInfo
from marginattack.attacks.external.problem_module import ProblemModule, assign_in_order
from marginattack.core.budget import BudgetExhausted
from marginattack.core.norms import as_norm
from marginattack.errors import InputError

INSTALLED = [  # without those that numba compiles for a minute, and those within a radius (test_autoattack_peers.py)
    name for name, attack in EXTERNAL_ATTACKS.items() if not (attack.why_unavailable() or attack.requires or attack.eps)
]


class Tagged(nn.Module):
    """Two logits of the second coordinate; the first tells the sample."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 1] - 0.5, 0.5 - x[:, 1]], dim=1)


def problem_module(n: int, budget: int) -> tuple[ProblemModule, Tensor]:
    x = torch.full((n, 2), 0.9)
    x[:, 0] = torch.arange(n) / n
    return ProblemModule(pose(Tagged(), x, torch.zeros(n, dtype=torch.int64), budget=budget)), x


def test_rows_of_a_smaller_batch_are_assigned_to_their_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    originals = torch.rand(60, 5, generator=generator)
    wrong_by_nearest = 0
    for trial in range(50):
        kept = (torch.rand(60, generator=generator) < 0.5).nonzero()[:, 0]
        noise = 0.25 * torch.rand(len(kept), 5, generator=generator)
        near = torch.cdist(originals[kept] + noise, originals).argmin(1)
        wrong_by_nearest += int((near != kept).sum())
        found = assign_in_order(originals[kept] + noise, originals)
        assert (found.diff() > 0).all(), trial
        cost = (originals[found] - originals[kept] - noise).norm(dim=1).sum()
        assert cost <= noise.norm(dim=1).sum() + 1e-4
    assert wrong_by_nearest > 0
    kept = torch.tensor([3, 4, 17, 59])
    assert assign_in_order(originals[kept] + 0.05, originals).tolist() == kept.tolist()


def test_samples_outside_a_smaller_batch_are_not_charged() -> None:
    module, x = problem_module(8, budget=6)
    module(x)
    some = torch.tensor([1, 4, 6])
    moved = x[some].clone()
    moved[:, 1] = torch.tensor([0.45, 0.7, 0.2])
    leaf = moved.requires_grad_()
    torch.autograd.grad(module(leaf)[:, 0].sum(), leaf)
    problem = module.problem
    assert problem.budget.forwards.tolist() == [1, 2, 1, 1, 2, 1, 2, 1]
    assert problem.budget.backwards.tolist() == [0, 1, 0, 0, 1, 0, 1, 0]
    assert torch.isfinite(problem.incumbent.distance[:, 0]).nonzero()[:, 0].tolist() == [1, 6]
    torch.testing.assert_close(problem.incumbent.distance[[1, 6], 0], torch.tensor([0.45, 0.7]))


def test_points_beyond_the_budget_do_not_count() -> None:
    module, x = problem_module(3, budget=2)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(leaf)[:, 0].sum(), leaf)
    assert (gradient[:, 1] == 1).all()
    near = x.clone()
    near[:, 1] = 0.4
    with pytest.raises(BudgetExhausted):
        module(near)
    assert torch.isinf(module.problem.incumbent.distance).all()
    assert (module.problem.budget.forwards + module.problem.budget.backwards).tolist() == [2, 2, 2]


def test_a_sample_without_budget_is_answered_without_a_query() -> None:
    module, x = problem_module(3, budget=2)
    module(x)
    leaf = x[:1].clone().requires_grad_()
    answer = module(leaf)  # the second and last pass of sample 0: none is left for a backward
    (gradient,) = torch.autograd.grad(answer[:, 0].sum(), leaf)
    assert (gradient == 0).all()
    assert module.problem.budget.forwards.tolist() == [2, 1, 1]
    assert module.problem.budget.backwards.tolist() == [0, 0, 0]
    answer = module(x)
    assert answer[0].argmax() == 1  # as if it were adversarial
    assert (answer[1:].argmax(1) == 0).all()


def test_a_point_outside_the_box_by_rounding_counts_and_others_do_not() -> None:
    module, x = problem_module(2, budget=10)
    x = x.clone()
    x[:, 1] = torch.tensor([-1e-8, -1e-3])
    module(x)
    assert torch.isfinite(module.problem.incumbent.distance[:, 0]).tolist() == [True, False]
    assert module.problem.incumbent.points[0, 1] == 0


def test_returned_points_cost_a_forward_only_where_they_are_new() -> None:
    module, x = problem_module(3, budget=10)
    points = x.clone()
    points[:, 1] = 0.4
    module(points)
    points[2, 1] = 0.45
    module.submit(points)
    assert module.problem.budget.forwards.tolist() == [1, 1, 2]
    assert module.problem.incumbent.distance[2, 0] == pytest.approx(0.45)


def test_more_rows_than_samples_raise() -> None:
    module, x = problem_module(3, budget=10)
    with pytest.raises(ValueError, match="4 rows for 3 samples"):
        module(torch.cat([x, x[:1]]))


def test_the_nearest_evaluated_point_counts_not_the_returned_one() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    good = ma.measure(model, x, y, "l2")

    def forgetful(module: ProblemModule) -> Tensor:
        module(good.adversarial)
        return module.images

    found = ma.measure(model, x, y, "l2", attack=external_stub(forgetful), budget=5)
    torch.testing.assert_close(found.distance, good.distance)


def test_targets_raise() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    with pytest.raises(InputError, match="untargeted"):
        ma.measure(model, x, y, "l2", attack=external_stub(lambda module: module.images), targets=(y + 1) % 4)


def test_unsupported_norms_raise() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    with pytest.raises(InputError, match="stub:attack supports l2, not linf"):
        ma.measure(model, x, y, "linf", attack=external_stub(lambda module: module.images))


@pytest.mark.parametrize("attack", EXTERNAL_ATTACKS.values(), ids=EXTERNAL_ATTACKS)
def test_every_external_attack_has_settings_for_every_budget(attack: ExternalAttack) -> None:
    for norm in attack.supported_norms:
        for budget in (100, 400, 2000):
            settings = attack.settings(ProblemInfo(norm, budget, 10, True))
            numbers = [v for k, v in settings.items() if isinstance(v, int) and not isinstance(v, bool) and k != "norm"]
            assert settings
            assert all(number >= 1 for number in numbers), settings


@pytest.mark.parametrize("name", INSTALLED)
def test_installed_external_attacks(name: str) -> None:
    """Samples are not mixed up, the budget is hard, the points are verified, and most are found."""
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=12)
    for norm in EXTERNAL_ATTACKS[name].supported_norms:
        found = ma.measure(model, x, y, norm, attack=EXTERNAL_ATTACKS[name], budget=101, diagnose=False)
        assert int((found.forwards + found.backwards).max()) <= 101
        assert not found.rejected.any()
        size = as_norm(norm).size((found.adversarial - x).flatten(1))[:, 0]
        here = found.success
        torch.testing.assert_close(size[here].double(), found.distance[here], rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            assert (model(found.adversarial[here]).argmax(1) != y[here]).all()
        # steps of adv-lib's tr are 0.001 long: 30 of them reach only the nearest boundaries
        assert here.double().mean() >= {"advlib:tr": 0.05, "art:deepfool": 0.7}.get(name, 0.9)
        again = ma.measure(model, x, y, norm, attack=EXTERNAL_ATTACKS[name], budget=101, diagnose=False)
        torch.testing.assert_close(again.distance, found.distance)


@pytest.mark.parametrize("name", INSTALLED)
def test_bounds_and_scale_are_those_of_the_problem(name: str) -> None:
    """The same problem in other units has the same result, where rounding is no matter."""
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=6)
    attack = EXTERNAL_ATTACKS[name]
    norm = attack.supported_norms[-1]
    expected = ma.measure(model, x, y, norm, attack=attack, budget=101, diagnose=False)
    half = ma.measure(model, x, y, norm, attack=attack, budget=101, diagnose=False, scale=2.0)
    unit = 1.0 if norm == "l0" else 2.0
    torch.testing.assert_close(half.distance, expected.distance / unit, rtol=1e-4, atol=0)
    assert torch.equal(half.adversarial == x, expected.adversarial == x)


def test_bounds_below_zero_are_used() -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    x, y = torch.tensor([[0.2, 0.5], [0.9, 0.1]]), torch.tensor([0, 0])

    def cross(module: ProblemModule) -> Tensor:
        assert torch.equal(module.images, (x + 1) / 2)
        leaf = module.images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(leaf)[:, 0].sum(), leaf)
        assert gradient.tolist() == [[2.0, 0.0], [2.0, 0.0]]
        points = module.images.clone()
        points[:, 0] = torch.tensor([0.45, 0.475])
        return points

    found = ma.measure(model, x, y, "l2", attack=external_stub(cross), bounds=(-1, 1), budget=9)
    torch.testing.assert_close(found.adversarial[:, 0], torch.tensor([-0.1, -0.05]))
    assert torch.equal(found.adversarial[:, 1], x[:, 1])


@pytest.mark.parametrize("space", [{"scale": [1.0, 2, 1, 1, 1, 1]}, {"fixed": [True] + 5 * [False]}])
def test_bounds_that_differ_between_features_raise(space: dict[str, Any]) -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=3)
    with pytest.raises(InputError, match="stub:attack supports the same bounds for all features only: leave out fixed"):
        ma.measure(model, x, y, "l2", attack=external_stub(lambda module: module.images), **space)


def test_unavailable_attacks_say_why() -> None:
    for name, attack in EXTERNAL_ATTACKS.items():
        if reason := attack.why_unavailable():
            assert "cannot be imported" in reason
            with pytest.raises(InputError, match="pip install"):
                external_attack(name)
    with pytest.raises(InputError, match=r"named 'advlib:dnd': did you mean advlib:ddn\?"):
        external_attack("advlib:dnd")
    with pytest.raises(InputError, match="no external attack named 'advlib:magic'"):
        external_attack("advlib:magic")
