"""The paper's theorems, on boundaries where the optimum is known: convergence, the convexity condition, dual norms."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from models import Function
from oracles import Oracle, sphere
from problems import validated
from torch import Tensor

import marginattack as ma
from marginattack.attacks.marginattack import BallProjection, LinearProjection, Projection, TangentProjection
from marginattack.core.norms import L1, L2, LINF, Norm
from marginattack.core.problem import Observation, Observer
from marginattack.core.schedules import Constant, Power

PAIRS, RADIUS = 120, 2.0  # of the sphere
DESIGNS = (TangentProjection(), LinearProjection(b=0.3), BallProjection(b=0.3))


class Recorder(Observer):
    """Keeps each point that was queried, and c there."""

    def __init__(self) -> None:
        self.points, self.c = list[Tensor](), list[Tensor]()

    def record(self, query: Observation) -> None:
        self.points.append(query.points)
        self.c.append(query.c)


def optimum(oracle: Oracle, norm: Norm) -> Tensor:
    """x* on the sphere: along the ray of x₀ in ℓ2; in ℓ∞ every coordinate grows by the margin."""
    if norm is L2:
        return RADIUS * L2.steepest(oracle.images)
    return oracle.images + torch.from_numpy(oracle.exact("linf"))[:, None] * torch.sign(oracle.images)


@pytest.mark.parametrize("design", DESIGNS, ids=repr)
@pytest.mark.parametrize(("norm", "inside"), [(L2, False), (L2, True), (LINF, True)], ids=str)
def test_the_iterates_converge_as_theorem_1_promises(norm: Norm, inside: bool, design: Projection) -> None:
    oracle, recorder, beta = sphere(0, inside=inside, n=5), Recorder(), Power(0.6, first=3)
    if norm is LINF:  # away from the kinks of s (assumption 2)
        oracle = inside_sphere(oracle.images + 0.1 * torch.sign(oracle.images))
    attack = ma.MarginAttack(
        rescue=0, moves=2 * PAIRS, closing=0, follow=0, scans=0, beta=beta, offset=Constant(0.0), projection=design,
        radius=0.05 if norm is LINF else 0.3,
    )  # fmt: skip  # from x₀ itself every iterate would be on the line to x*, without a tangential error
    with validated(ma.Classifier(oracle.model, bounds=oracle.bounds), oracle.images, oracle.labels) as (session, batch):
        session.problem(batch, norm, observer=recorder).solve(attack)
    assert len(recorder.c) == 2 * PAIRS + 1  # the last point is queried as well
    x = torch.stack(recorder.points[:-1:2])  # x_k, before each restoration
    c = torch.stack(recorder.c[:-1:2])[:, :, 0].abs()
    rate = torch.tensor([beta(k, PAIRS) for k in range(PAIRS)], dtype=torch.float64)[:, None]

    # |c(x_k)| ≤ κ β_k (Lemma 1.2), up to the decision tolerance that c is raised by
    kappa = 1.2 * (c / rate)[1:21].amax(0)
    assert (c[21:] <= kappa * rate[21:] + 1e-12).all()

    # ‖P(x_k − x₀)‖ → 0 (Lemma 1.3), P = I − s* (∇cᵀs*)⁻¹ ∇cᵀ
    best = optimum(oracle, norm)
    s = norm.steepest(best)
    along = ((x - oracle.images) * best).sum(2, keepdim=True) / (best * s).sum(1, keepdim=True)
    tangential = (x - oracle.images - along * s).norm(dim=2)
    assert (tangential[0] > 0.01).all()
    assert (tangential[-1] < 0.05 * tangential[0]).all()
    assert ((x[-1] - best).norm(dim=1) < 2 * rate[-1] * (oracle.images - best).norm(dim=1)).all()


def inside_sphere(images: Tensor) -> Oracle:
    """The sphere with these inputs inside it, and their ℓ∞ margins: Σ (|v| + ρ)² = R²."""
    oracle = sphere(0, inside=True, n=len(images))
    size = images.abs()
    one, square, d = size.sum(1), size.square().sum(1), images.shape[1]
    exact = (-one + (one.square() - d * (square - RADIUS**2)).sqrt()) / d
    return Oracle(oracle.model, images, oracle.labels, oracle.bounds, lambda norm: exact.numpy())


def bent(curvature: float) -> Callable[[Tensor], Tensor]:
    """Two classes with the boundary y = 1 − ½ curvature x²: at (0, 1) the unit ball has curvature 1."""

    def logits(x: Tensor) -> Tensor:
        c = 1 - curvature / 2 * x[:, 0].square() - x[:, 1]
        return torch.stack([3 * c, torch.zeros_like(c)], 1)

    return logits


def plane_problem(curvature: float, norm: Norm = L2) -> ma.Problem:
    origin = torch.zeros(1, 2, dtype=torch.float64)
    classifier = ma.Classifier(Function(bent(curvature)), bounds=(-4.0, 4.0))
    with validated(classifier, origin, torch.tensor([0])) as (session, batch):
        return session.problem(batch, norm)


def convexity(curvature: float, design: Projection, aside: float) -> float:
    """γ of assumption 5 at the point of the boundary that is this far aside of x* = (0, 1)."""
    problem = plane_problem(curvature)
    z = torch.tensor([[aside, 1 - curvature / 2 * aside**2]], dtype=torch.float64)
    _, g = problem.value_and_gradient(z)
    direction = (z - design(problem, z, g, 1e-6)) / 1e-6  # a ∇d + b s, as the attack computes it
    # P is the projection onto the first axis: ∇c(x*) = s(x*) = (0, −1) up to length.
    return float(direction[0, 0] * z[0, 0] / z[0, 0] ** 2)


@pytest.mark.parametrize(
    ("curvature", "gamma"), [(-1.0, 2.0), (0.0, 1.0), (0.5, 0.5), (0.9, 0.1), (1.0, 0.0), (1.1, -0.1), (2.0, -1.0)]
)
def test_the_convexity_condition_holds_exactly_while_the_boundary_bends_less_than_the_ball(
    curvature: float, gamma: float
) -> None:
    """γ = 1 − curvature · ‖x* − x₀‖ at x*: positive below the ball's curvature, 0 at it (Thm. 3: c convex)."""
    near = [convexity(curvature, TangentProjection(), aside) for aside in (-0.01, 0.003)]
    assert near == pytest.approx([gamma, gamma], abs=1e-3)


@pytest.mark.parametrize("curvature", [0.0, 0.5, 0.9, 1.1, 1.5])
def test_the_attack_stays_at_the_tangent_point_exactly_where_the_condition_holds(curvature: float) -> None:
    start = torch.tensor([[0.1, 1 - curvature / 2 * 0.01]], dtype=torch.float64)
    problem, recorder = plane_problem(curvature), Recorder()
    attack = ma.MarginAttack(moves=120, closing=0, beta=Constant(0.3), projection=TangentProjection())
    problem = replace(problem, observer=recorder)
    problem.solve(lambda whole: attack.run(whole, start, 120, scans=0))
    end = abs(recorder.points[-1][0, 0].item())
    assert end < 0.1 * 0.6 if curvature < 1 else end > 0.2


@pytest.mark.parametrize("design", DESIGNS[1:], ids=repr)
def test_the_second_design_meets_the_condition_where_c_is_convex(design: Projection) -> None:
    assert convexity(-0.5, design, 0.01) > 0.5
    assert convexity(0.0, design, 0.01) > 0.5


@pytest.mark.parametrize(("norm", "dual"), [(L2, L2), (LINF, L1)], ids=str)
def test_the_shortest_hop_follows_the_dual_norm(norm: Norm, dual: Norm) -> None:
    """Thm. 2 and Lemma 1.1: argmin ‖x‖ s.t. gᵀx = b is b s / gᵀs, of size |b| / ‖g‖*, and gᵀs / ‖s‖₂ ≥ ‖g‖₂ / √n."""
    torch.manual_seed(0)
    g = torch.randn(50, 7, dtype=torch.float64)
    s, b = norm.steepest(g), 1.7
    x = b * s / (g * s).sum(1, keepdim=True)
    torch.testing.assert_close((g * x).sum(1), torch.full((50,), b, dtype=torch.float64))
    torch.testing.assert_close(norm.size(x), b / dual.size(g))
    other = x + torch.randn_like(x)
    other = other * b / (g * other).sum(1, keepdim=True)  # another point of the plane
    assert (norm.size(other) >= norm.size(x) * (1 - 1e-12)).all()
    assert ((g * s).sum(1) / s.norm(dim=1) >= g.norm(dim=1) / 7**0.5).all()


@pytest.mark.parametrize("norm", [L2, LINF], ids=str)
def test_the_optimum_has_no_tangential_part(norm: Norm) -> None:
    """Lemma 1.5: x* − x₀ is a multiple of s(x*), so P(x* − x₀) = 0."""
    oracle = sphere(0, inside=True, n=5)
    best = optimum(oracle, norm)
    margins = ma.measure(oracle.model, oracle.images, oracle.labels, norm, bounds=oracle.bounds)
    step = torch.from_numpy(oracle.exact(str(norm)))[:, None] * norm.steepest(best)
    torch.testing.assert_close(oracle.images + step, best)
    torch.testing.assert_close(margins.adversarial, best, rtol=0, atol=2e-3)
