"""MarginAttack move by move against the paper's equations, and its presets against the paper's table."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from models import inputs, smooth
from oracles import linear
from problems import validated
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.marginattack import (
    ActiveSet,
    BallProjection,
    Clipped,
    DefaultProjection,
    InBox,
    LinearProjection,
    TangentProjection,
)
from marginattack.attacks.presets import PRESETS
from marginattack.core.norms import L0, L1, L2, LINF, Norm
from marginattack.core.schedules import Power

FREE = (-torch.inf, torch.inf)
PLAIN = ma.MarginAttack(follow=0, scans=0, moves=40, closing=10, rescue=0)


def pose(norm: Norm, *, bounds: tuple[float, float] = (0.0, 1.0), d: int = 6) -> ma.Problem:
    model = smooth(d=d)
    with validated(ma.Classifier(model, bounds=bounds), *inputs(model, (d,))) as (session, batch):
        return session.problem(batch, norm)


def random(problem: ma.Problem, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Random points, new ones at each call."""
    return low + (high - low) * problem.draws.uniform()


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_first_design_is_equation_6_with_its_sign_corrected(beta: float) -> None:
    problem = pose(L2, bounds=FREE)
    z, grad_c = random(problem, -2, 2), random(problem, -3, 3)
    x = TangentProjection()(problem, z, grad_c, beta)
    for i in range(len(z)):
        grad_d, s = z[i] - problem.x0[i], grad_c[i] / grad_c[i].norm()
        a = 1.0
        b = -a * (grad_c[i] @ grad_d) / (grad_c[i] @ s)
        torch.testing.assert_close(x[i], z[i] - beta * a * grad_d - beta * b * s)


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
def test_the_first_design_stays_on_the_tangent_plane(norm: Norm) -> None:
    problem = pose(norm, bounds=FREE)
    z, g = random(problem, -2, 2), random(problem, -3, 3)
    x = TangentProjection()(problem, z, g, 0.4)
    torch.testing.assert_close((g * (x - z)).sum(1), torch.zeros(20, dtype=torch.float64), rtol=0, atol=1e-10)
    p = TangentProjection()(problem, z, g, 1.0)
    assert (norm.size(p - problem.x0) <= norm.size(z - problem.x0) * (1 + 1e-12)).all()


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
@pytest.mark.parametrize("relative", [False, True])
def test_the_second_design_shrinks_by_beta_exactly_where_its_ball_is_active(norm: Norm, relative: bool) -> None:
    problem, beta = pose(norm), 0.2
    z, g = random(problem), random(problem, -3, 3)
    size = norm.size(z - problem.x0)
    x = BallProjection(0.5, relative)(problem, z, g, beta)
    shrunk = norm.size(x - problem.x0)
    assert (shrunk <= (1 - beta) * size * (1 + 1e-12)).all()
    pushed = z - beta * 0.5 * (size if relative else 1.0) * norm.steepest(g)
    active = norm.size(pushed - problem.x0) >= (1 - beta) * size
    assert active.double().mean() > 0.3
    torch.testing.assert_close(shrunk[active], (1 - beta) * size[active])
    assert x[~active[:, 0]].equal(pushed[~active[:, 0]])


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
def test_without_a_push_the_second_design_shrinks_towards_the_input(norm: Norm) -> None:
    problem = pose(norm)
    z = random(problem)
    x = BallProjection(0.0)(problem, z, random(problem, -1, 1), 0.3)
    torch.testing.assert_close(norm.size(x - problem.x0), 0.7 * norm.size(z - problem.x0))


@pytest.mark.parametrize(("norm", "dual"), [(L2, L2), (LINF, L2), (LINF, L1)], ids=str)
@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_linearised_second_design_is_equations_9_and_10_with_their_signs_put_right(
    norm: Norm, dual: Norm, beta: float
) -> None:
    problem, b = pose(norm, bounds=FREE), 0.5
    z, grad_c = random(problem, -2, 2), random(problem, -3, 3)
    x = LinearProjection(b, dual)(problem, z, grad_c, beta)
    for i in range(len(z)):
        v, s = z[i] - problem.x0[i], norm.steepest(grad_c[i : i + 1])[0]
        if dual is L2:  # Eq. 10 as printed, with ∇d = v
            d, grad_d = v @ v, v
            torch.testing.assert_close((d - b * (v @ s)) / (v @ v), 1 - b * (v @ s) / (v @ v))
        else:
            d, grad_d = v.abs().max(), torch.where(v.abs() == v.abs().max(), torch.sign(v), 0)
        a = (d - b * (grad_d @ s)) / (grad_d @ grad_d)
        torch.testing.assert_close(x[i], z[i] - beta * a * grad_d - beta * b * s)
        torch.testing.assert_close(grad_d @ (x[i] - z[i]), -beta * d)  # Eq. 9 with its sign


def test_at_beta_1_the_linearised_design_keeps_starts_apart_and_the_exact_one_does_not() -> None:
    problem = pose(LINF)
    starts, g = [random(problem) for _ in range(2)], random(problem, -3, 3)
    exact = [BallProjection(0.1)(problem, z, g, 1.0) for z in starts]
    assert exact[0].equal(exact[1])
    assert exact[0].equal(problem.x0)
    linear = [LinearProjection(0.1)(problem, z, g, 1.0) for z in starts]
    assert (LINF.size(linear[0] - linear[1]) > 0.001).all()


def test_a_projection_at_the_input_stays_finite() -> None:
    problem = pose(LINF)
    x = LinearProjection(0.1)(problem, problem.x0, random(problem, -3, 3), 0.5)
    assert torch.isfinite(x).all()


@pytest.mark.parametrize("norm", [L2, LINF], ids=str)
def test_the_active_set_ends_at_the_exact_point(norm: Norm) -> None:
    problem = pose(norm, d=60)
    x, g = random(problem), random(problem, -1, 1) ** 3
    room = torch.where(g > 0, x, 1 - x)
    c = (0.6 * (g.abs() * room).sum(1, keepdim=True)).detach()  # many bounds are active, but the plane is in reach
    exact = InBox()(problem, x, c, g, 1.0)
    assert ((exact == 0) | (exact == 1)).double().mean() > 0.1
    torch.testing.assert_close(ActiveSet(60)(problem, x, c, g, 1.0), exact)
    five = ActiveSet(5)(problem, x, c, g, 1.0)
    assert (norm.size(five - x) / norm.size(exact - x)).min() > 0.95
    reached = (g * (x - five)).sum(1, keepdim=True) / c
    assert reached.min() > 0.97
    assert reached.max() < 1.0001


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 0.2])
@pytest.mark.parametrize("restoration", [InBox(), Clipped(), ActiveSet(100)], ids=repr)
def test_restoration_lands_on_the_linearised_plane(
    norm: Norm, alpha: float, restoration: InBox | Clipped | ActiveSet
) -> None:
    problem = pose(norm, bounds=FREE if isinstance(restoration, Clipped) or norm is L1 else (0.0, 1.0))
    x = random(problem)
    c, g = problem.value_and_gradient(x)
    room = torch.where(c * g > 0, x, 1 - x)
    c = torch.sign(c) * torch.minimum(c.abs(), 0.7 * (g.abs() * room).sum(1, keepdim=True))
    z = restoration(problem, x, c, g, alpha)
    torch.testing.assert_close((g * (z - x)).sum(1, keepdim=True), -alpha * c)
    shortest = alpha * c.abs() / norm.dual(g)
    assert (norm.size(z - x) >= shortest * (1 - 1e-9)).all()
    if problem.box.lo.isinf().all():
        torch.testing.assert_close(norm.size(z - x), shortest)


@pytest.mark.parametrize("moves", [1, 2, 7, 40])
@pytest.mark.parametrize("closing", [0, 1])
def test_a_move_is_one_backward(moves: int, closing: int) -> None:
    problem = pose(L2)
    problem.solve(replace(PLAIN, moves=moves, closing=closing))
    assert problem.budget.backwards.tolist() == [moves] * 20
    assert problem.budget.forwards.tolist() == [moves + 1] * 20  # the last point is queried as well


@pytest.mark.parametrize(("candidates", "each"), [(1, 1), (2, 2), (10, 3)])
def test_a_scan_is_one_backward_per_candidate(candidates: int, each: int) -> None:
    problem = pose(L2)
    problem.solve(replace(PLAIN, scans=4, candidates=candidates))
    assert problem.budget.backwards.tolist() == [40 + 4 * (each - 1)] * 20
    assert problem.budget.forwards.tolist() == [41] * 20


def test_following_classes_costs_one_scan_and_no_further_moves() -> None:
    problem = pose(L2)
    problem.solve(ma.MarginAttack(follow=2, moves=40, closing=10))
    assert problem.budget.backwards.tolist() == [3 + 40] * 20


def test_restarts_multiply_the_moves_and_the_first_is_kept_if_better() -> None:
    once, thrice = pose(LINF), pose(LINF)
    once.solve(replace(PLAIN, radius=0.1))
    thrice.solve(replace(PLAIN, radius=0.1, restarts=3))
    assert thrice.budget.backwards.tolist() == [120] * 20
    assert (thrice.incumbent.distance <= once.incumbent.distance).all()
    assert (thrice.incumbent.distance < once.incumbent.distance).any()


@pytest.mark.parametrize("norm", [L0, L1, L2, LINF], ids=str)
def test_the_default_is_the_second_design_in_linf_and_the_first_elsewhere(norm: Norm) -> None:
    problem = pose(norm)
    z, g = random(problem), random(problem, -3, 3)
    design = BallProjection(b=4.0, relative=True) if norm is LINF else TangentProjection()
    expected = design(problem, z, g, 0.1 if norm is LINF else 0.4)
    assert ma.MarginAttack().projection(problem, z, g, 0.4).equal(expected)


@pytest.mark.parametrize("norm", [L2, LINF], ids=str)
def test_final_tuning_until_misclassified_ends_each_sample_at_its_first_success(norm: Norm) -> None:
    attack = replace(PLAIN, moves=20, closing=10)
    fixed, until = pose(norm), pose(norm)
    fixed.solve(attack)
    until.solve(replace(attack, until_misclassified=True))
    found = torch.isfinite(fixed.incumbent.distance)
    assert found.all()
    assert until.incumbent.distance.isfinite().equal(found)
    assert (until.incumbent.distance >= fixed.incumbent.distance).all()
    assert (until.budget.backwards <= fixed.budget.backwards).all()
    assert (until.budget.backwards < fixed.budget.backwards).any()
    assert until.budget.backwards.min() >= 10  # the pairs are not cut short


@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_uses_the_default_projection(name: str) -> None:
    assert not isinstance(ma.preset(name).projection, DefaultProjection)


def test_the_first_of_several_starts_that_follow_classes_is_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    attempt = ma.MarginAttack.attempt

    def recorded(self: ma.MarginAttack, problem: ma.Problem, x: Tensor, passes: int) -> None:
        seen.append(x.equal(problem.x0))
        attempt(self, problem, x, passes)

    monkeypatch.setattr(ma.MarginAttack, "attempt", recorded)
    ours = ma.MarginAttack(moves=20, closing=2, radius=0.1)
    for attack in (replace(ours, restarts=3), ours, replace(PLAIN, radius=0.1, restarts=2)):
        pose(L2).solve(attack)
    assert seen == [True, False, False, False, False, False]


def test_a_random_start_is_uniform_within_the_radius_and_the_box() -> None:
    problem = pose(L2, bounds=(0.05, 0.95), d=50)
    attack = replace(PLAIN, radius=0.2)
    assert replace(PLAIN, radius=0.0).start(problem).equal(problem.x0)
    offset = attack.start(problem) - problem.x0
    assert (offset.abs() <= 0.2).all()
    assert offset.abs().max() > 0.19
    assert ((problem.x0 + offset >= 0.05 - 1e-12) & (problem.x0 + offset <= 0.95 + 1e-12)).all()
    assert abs(offset.mean().item()) < 0.02


@pytest.mark.parametrize("near", ["input", "iterate"])
def test_a_scan_keeps_the_class_whose_point_is_nearest(near: Literal["input", "iterate"]) -> None:
    problem = pose(L2)
    x = random(problem)
    attack = replace(PLAIN, scan_near=near)
    centre = problem.x0 if near == "input" else x
    z = attack.scan(problem, x, 1.0, 0.0)
    points = [InBox()(problem, x, c, g, 1.0) for _, c, g in problem.class_constraints(x, most=10)]
    nearest = torch.cat([L2.size(point - centre) for point in points], 1).amin(1, keepdim=True)
    torch.testing.assert_close(L2.size(z - centre), nearest)


# The paper's table, rows a and b swapped back: width of its pixels; b (ℓ2: from Eq. 8), α, exponent of β, u, restarts.
TABLE = {
    "mnist-l2": (1, None, 1.0, 0.5, 0.05, 10),
    "cifar10-l2": (255, None, 1.0, 0.5, 0.1, 10),
    "imagenet-l2": (255, None, 1.0, 0.5, 0.0, 1),
    "mnist-linf": (1, 0.1, 0.2, 1.0, 0.05, 10),
    "cifar10-linf": (255, 1.0, 0.2, 1.0, 0.1, 10),
    "imagenet-linf": (255, 0.3, 0.2, 1.0, 0.0, 1),
    "challenge": (1, 5.0, 0.2, 1.0, 0.3, 50),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("scale", [1, 255])
def test_presets_are_the_columns_of_the_papers_table(name: str, scale: int) -> None:
    width, b, alpha, exponent, u, restarts = TABLE[name]
    attack = ma.preset(name, (0.0, float(scale)))
    unit = scale / width
    if b is None:
        assert attack.projection == TangentProjection()
    else:
        assert isinstance(attack.projection, LinearProjection)
        assert attack.projection.b == pytest.approx(b * unit)
        assert attack.projection.dual is L2
    assert attack.radius == pytest.approx(u * unit)
    assert attack.restarts == restarts
    for k in (0, 1, 9, 80):
        assert attack.beta(k, 90) == pytest.approx((k + 1) ** -exponent)
        assert attack.alpha(k, 90) == alpha
        assert attack.offset(k, 90) == attack.closing_offset(k, 90) == -0.01
    assert attack.closing_alpha == 1.0  # correction 7
    assert (attack.moves, attack.closing, attack.scans) == (500 if name == "challenge" else 200, 20, 10)
    assert (attack.follow, attack.scan_near, attack.restoration) == (0, "input", InBox())


def test_the_first_author_counts_moves() -> None:
    """Projection k is move 2k + 2 of all, counted from 1; scans are the restorations among the first 21 moves."""
    for name, exponent, alpha in (("author-l2", 0.3, 1.0), ("author-linf", 1.0, 0.2)):
        attack = ma.preset(name)
        assert [attack.beta(k, 90) for k in (0, 1, 89)] == pytest.approx([m**-exponent for m in (2, 4, 180)])
        assert (attack.alpha(3, 90), attack.closing_alpha, attack.offset(3, 90)) == (alpha, alpha, -0.1)
        assert (attack.scans, attack.scan_near, attack.restoration) == (11, "iterate", ActiveSet(5))
    assert ma.preset("author-linf").projection == BallProjection(b=0.1)
    assert Power(1.0, first=2)(0, 90) == 0.5


def test_presets_depend_on_the_width_of_the_box_only() -> None:
    for name in PRESETS:
        assert ma.preset(name) == ma.preset(name, (0.0, 1.0)) == ma.preset(name, (-0.5, 0.5))
    wide = ma.preset("cifar10-linf", (0.0, 255.0))
    assert wide == PRESETS["cifar10-linf"][1]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_finds_a_margin_near_the_best(name: str) -> None:
    model = smooth()
    images, labels = inputs(model)
    norm = "linf" if "linf" in name or name == "challenge" else "l2"
    attack = replace(ma.preset(name), restarts=1)
    margins = ma.measure(model, images, labels, norm, attack=attack)
    best = ma.measure(model, images, labels, norm)
    assert margins.success.all()
    assert (margins.distance / best.distance).median() < 1.1


def test_rosens_preset_solves_a_linear_model_in_its_first_pair() -> None:
    oracle = linear(0, n=30, classes=2, boxed=False, dtype=torch.float64)
    attack = replace(ma.preset("rosen"), moves=4, closing=2)
    margins = ma.measure(oracle.model, oracle.images, oracle.labels, attack=attack, bounds=FREE)
    excess = margins.distance.numpy() / oracle.exact("l2") - 1
    assert (excess > -1e-9).all()
    assert np.median(excess) < 0.02  # the offset of −0.01


def test_the_closing_moves_succeed_on_every_digit_with_the_papers_settings(
    network: nn.Module, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = (part[:10] for part in digits)
    attack = replace(ma.preset("mnist-linf"), restarts=1, candidates=3)
    margins = ma.measure(network, images, labels, "linf", attack=attack)
    assert margins.success.all()
    assert not margins.rejected.any()
    assert (margins.distance < 0.3).all()


@pytest.mark.parametrize(("moves", "closing", "pairs"), [(40, 10, 15), (40, 0, 20), (41, 40, 10), (7, 2, 2), (1, 1, 0)])
def test_moves_come_in_pairs_and_the_last_are_all_restorations(moves: int, closing: int, pairs: int) -> None:
    kinds: list[str] = []

    def project(problem: ma.Problem, z: Tensor, g: Tensor, beta: float | Tensor) -> Tensor:
        kinds.append("projection")
        return TangentProjection()(problem, z, g, beta)

    def restore(problem: ma.Problem, x: Tensor, c: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
        kinds.append("restoration")
        return InBox()(problem, x, c, g, alpha)

    attack = replace(PLAIN, moves=moves, closing=closing, projection=project, restoration=restore)
    attack(pose(L2))
    assert kinds == ["restoration", "projection"] * pairs + ["restoration"] * (moves - 2 * pairs)
