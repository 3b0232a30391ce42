"""Norms and schedules: projections against reference solvers, values at both ends."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize

from marginattack.core.box import Box
from marginattack.core.norms import L0, L1, L2, LINF, NORMS, Norm
from marginattack.core.schedules import Cosine, Geometric, Power

Array = NDArray[Any]


def reference(norm: Norm, w: Array, room: Array, r: float) -> Any:
    """The least size of t in [0, room] with wᵀt = r, from a solver that knows nothing of breakpoints."""
    d = len(w)
    if norm is L1:
        return linprog(np.ones(d), A_eq=[w], b_eq=[r], bounds=list(zip(np.zeros(d), room, strict=True))).fun
    if norm is LINF:
        below = np.hstack([np.eye(d), -np.ones((d, 1))])
        bounds = [*zip(np.zeros(d), room, strict=True), (0, None)]
        return linprog([*np.zeros(d), 1], A_ub=below, b_ub=np.zeros(d), A_eq=[[*w, 0]], b_eq=[r], bounds=bounds).fun
    result = minimize(  # type: ignore[call-overload]
        lambda t: t @ t, room * r / (w @ room), jac=lambda t: 2 * t, method="SLSQP",
        bounds=list(zip(np.zeros(d), room, strict=True)), options={"ftol": 1e-15, "maxiter": 500},
        constraints={"type": "eq", "fun": lambda t: w @ t - r, "jac": lambda t: w},
    )  # fmt: skip
    return float(np.sqrt(result.fun))


@st.composite
def planes(draw: st.DrawFn) -> tuple[Array, Array, float]:
    """A point of the unit box, g, and a share of what can be reached; zeros, ties and bounds included."""
    d = draw(st.integers(1, 7))
    x = np.array(draw(st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)), min_size=d, max_size=d)))
    values = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-3, 3).filter(lambda v: abs(v) > 1e-3))
    g = np.array(draw(st.lists(values, min_size=d, max_size=d)))
    return x, g, draw(st.floats(-1.3, 1.3))


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
@settings(max_examples=150, deadline=None)
@given(plane=planes())
def test_onto_plane_is_on_the_plane_in_the_box_and_nearest(norm: Norm, plane: tuple[Array, Array, float]) -> None:
    x, g, share = plane
    direction = -np.sign(share) * np.sign(g)
    room = np.where(direction > 0, 1 - x, np.where(direction < 0, x, 0))
    reach = float(np.abs(g) @ room)
    r = share * reach
    z = nearest(norm, x, g, r, torch.float64)
    assert ((z >= 0) & (z <= 1)).all()
    size = float(norm.size(torch.from_numpy(z - x)[None]))
    if abs(share) >= 1:
        np.testing.assert_allclose(z, x + direction * room, atol=1e-12)
    elif reach > 1e-6 and abs(share) > 1e-6:
        assert g @ (z - x) == pytest.approx(-r, rel=1e-9, abs=1e-12)
        assert size <= reference(norm, np.abs(g), room, abs(r)) * (1 + 1e-5) + 1e-7


def nearest(
    norm: Norm, x: Array, g: Array, r: float, dtype: torch.dtype, bounds: tuple[float, float] = (0, 1)
) -> Array:
    box = Box(*(torch.tensor([[bound]], dtype=dtype) for bound in bounds))
    start, slope = (torch.from_numpy(v)[None].to(dtype) for v in (x, g))
    return norm.onto_plane(start, slope, torch.tensor([[r]], dtype=dtype), box)[0].double().numpy()


@pytest.mark.parametrize("norm", [L2, LINF], ids=str)
def test_onto_plane_is_exact_where_many_coordinates_meet_their_bounds(norm: Norm) -> None:
    """The room of each coordinate ends at a time of its own, so that Newton's method meets a breakpoint per step."""
    rng = np.random.default_rng(0)
    for d in (40, 400):
        w, order = np.geomspace(1, 1e-3, d), rng.permutation(d)
        time = np.geomspace(1e-6, 1, d)  # at which coordinates meet their bounds
        speed = w if norm is L2 else np.ones(d)
        x, end = time * speed, np.append(time, 2)
        # Sorting the breakpoints: Σ w·min(λ·speed, x) = r is linear in λ between two of them.
        reached = np.array([w @ np.minimum(each * speed, x) for each in end])
        for share in (0.5, 0.9, 0.999, 1 - 1e-6):
            r = share * reached[-1]
            k = int(np.searchsorted(reached, r))
            rest = w[k:] @ speed[k:]
            level = (r - w[:k] @ x[:k]) / rest
            expected = x - np.minimum(level * speed, x)
            found = nearest(norm, x[order], w[order], r, torch.float64)
            np.testing.assert_allclose(found, expected[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS.values(), ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_scales_of_gradient_and_constraint_cancel(norm: Norm, scale: float) -> None:
    rng = np.random.default_rng(0)
    x, g = rng.random(200), rng.standard_normal(200)
    plain = nearest(norm, x, g, 5.0, torch.float64)
    scaled = nearest(norm, x, g * scale, 5.0 * scale, torch.float32)
    np.testing.assert_allclose(scaled, plain, atol=2e-5)


@pytest.mark.parametrize("norm", NORMS.values(), ids=str)
def test_float32_is_on_the_plane_in_many_dimensions(norm: Norm) -> None:
    rng = np.random.default_rng(1)
    x, g = rng.random(50_000), rng.standard_normal(50_000) ** 3
    for r in (30.0, 10_000.0):
        z = nearest(norm, x, g, r, torch.float32)
        assert g @ (z - x.astype(np.float32)) == pytest.approx(-r, rel=3e-4)


@pytest.mark.parametrize("norm", NORMS.values(), ids=str)
def test_zero_gradient_zero_room_and_no_box(norm: Norm) -> None:
    x = np.array([0.0, 1.0, 0.5])
    np.testing.assert_array_equal(nearest(norm, x, np.zeros(3), 1.0, torch.float32), x)
    np.testing.assert_array_equal(nearest(norm, x[:2], np.array([1.0, -1.0]), 1.0, torch.float32), x[:2])
    z = nearest(norm, x, np.array([3.0, 4.0, 0.0]), 5.0, torch.float64, (-np.inf, np.inf))
    assert np.array([3.0, 4.0, 0.0]) @ (z - x) == pytest.approx(-5)
    expected = {"l2": 1.0, "linf": 5 / 7, "l1": 5 / 4, "l0": 1.0}[norm.name]
    assert float(norm.size(torch.from_numpy(z - x)[None])) == pytest.approx(expected)


def test_bounds_may_differ_by_coordinate_and_sample() -> None:
    x = torch.zeros(2, 2)
    lo = torch.tensor([[-1.0, -0.1], [-0.2, -1.0]])
    z = L2.onto_plane(x, torch.ones(2, 2), torch.full((2, 1), 0.6), Box(lo, torch.ones(2, 2)))
    torch.testing.assert_close(z, torch.tensor([[-0.5, -0.1], [-0.2, -0.4]]))


def test_l0_changes_as_few_coordinates_as_possible() -> None:
    x, g = np.array([0.1, 0.9, 0.5, 0.5]), np.array([1.0, 1.0, 1.0, 0.2])
    z = nearest(L0, x, g, 1.2, torch.float64)
    np.testing.assert_allclose(z, [0.1, 0.0, 0.2, 0.5])


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), radius=st.floats(0, 3))
def test_onto_ball_is_the_euclidean_projection(norm: Norm, seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    x, centre = torch.from_numpy(rng.standard_normal((2, 1, 6)))
    rho = torch.tensor([[radius]], dtype=torch.float64)
    y = norm.onto_ball(x, centre, rho)
    assert float(norm.size(y - centre)) <= radius * (1 + 1e-9) + 1e-12
    for _ in range(50):  # no point of the ball is nearer: (x − y)ᵀ(p − y) ≤ 0
        p = torch.from_numpy(rng.standard_normal((1, 6)))
        p = centre + p * rho / norm.size(p)
        assert float(((x - y) * (p - y)).sum()) <= 1e-9
    if float(norm.size(x - centre)) <= radius:
        assert torch.equal(x, y)


@pytest.mark.parametrize("norm", [L1, L2, LINF], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_dual_and_steepest_agree(norm: Norm, scale: float) -> None:
    g = torch.randn(20, 9, generator=torch.Generator().manual_seed(0)) * scale
    s = norm.steepest(g)
    torch.testing.assert_close(norm.size(s), torch.ones(20, 1))
    torch.testing.assert_close((g * s).sum(1, keepdim=True), norm.dual(g))
    assert torch.equal(norm.steepest(torch.zeros(1, 9)), torch.zeros(1, 9))


def test_schedules_at_both_ends_and_in_the_middle() -> None:
    cosine = Cosine(3.0, 1.0)
    assert [cosine(k, 5) for k in range(5)] == pytest.approx([3, 2 + 0.5**0.5, 2, 2 - 0.5**0.5, 1], rel=1e-12)
    assert [Geometric(8.0, 2.0)(k, 3) for k in range(3)] == pytest.approx([8, 4, 2], rel=1e-12)
    assert (cosine(0, 1), Geometric(8.0, 2.0)(0, 1)) == (3, 8)  # a single step is the first
    assert [Power(0.5, stride=2)(k, 9) for k in (0, 4)] == pytest.approx([2**-0.5, 10**-0.5], rel=1e-12)
