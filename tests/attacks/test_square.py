"""Square's proposals, and its success rates beside those of pyautoattack."""

from itertools import pairwise

import pytest
import torch
from models import smooth
from problems import pose
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.square import PROPOSALS, Bumps, Grid, Square
from marginattack.core.norms import as_norm

RADII = {"linf": 0.2, "l2": 1.0, "l1": 4.0}
by_norm = pytest.mark.parametrize("norm", PROPOSALS)


def images(shape: tuple[int, ...] = (2, 12, 12), n: int = 5) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, and images of this shape with the labels that it predicts."""
    model = nn.Sequential(nn.Flatten(), smooth(d=torch.Size(shape).numel(), dtype=torch.float32))
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model, x, model(x).argmax(1)


@by_norm
@pytest.mark.parametrize("shape", [(2, 12, 12), (7,), (3, 9)], ids=str)
def test_proposals_stay_in_the_ball_and_the_box_and_differ_between_samples(norm: str, shape: tuple[int, ...]) -> None:
    model, x, y = images(shape)
    problem, proposal = pose(model, x, y, norm=as_norm(norm), budget=10), PROPOSALS[norm]
    radius = torch.full((len(x), 1), RADII[norm])
    points = [proposal.first(problem, radius)]
    for p in (0.8, 0.3, 0.05):
        points.append(proposal.change(problem, points[-1], radius, p))
    for before, after in pairwise(points):
        assert bool((problem.norm.size(after - problem.x0) <= radius).all())
        assert bool(problem.box.contains(after).all())
        assert int((after != before).any(1).sum()) >= 2  # a window may get the sign that it has
    assert bool((problem.norm.size(points[0] - problem.x0) > 0.5 * radius).all())
    changed = points[-1] != points[-2]
    assert len({tuple(row) for row in changed.tolist()}) > 1


def test_linf_changes_one_square_window_to_the_surface_of_the_ball() -> None:
    model, x, y = images((1, 20, 20))
    problem, radius = pose(model, 0.25 + x / 2, y, norm=ma.LINF, budget=10), torch.full((len(x), 1), 0.1)
    first = PROPOSALS["linf"].first(problem, radius)
    moved = PROPOSALS["linf"].change(problem, first, radius, 0.09)
    torch.testing.assert_close((moved - problem.x0).abs(), torch.full_like(moved, 0.1), atol=1e-5, rtol=0)
    for rows in (moved != first).view(-1, 20, 20):
        where = rows.nonzero()
        if len(where):
            assert bool((where.amax(0) - where.amin(0) < 6).all())  # √(0.09 · 400) = 6


def test_windows_have_the_share_of_the_pixels() -> None:
    assert Grid(3, 32, 32).window(0.25) == (16, 16)
    assert Grid(1, 1, 40).window(0.25) == (1, 10)
    assert Grid(1, 40, 4).window(0.5) == (20, 4)
    assert Grid(1, 28, 28).window(1e-6) == (1, 1)


def test_the_share_is_halved_on_schedule() -> None:
    standard, whole = Square(p=0.8), Square(p=0.8, horizon=100)
    assert [standard.share(query) for query in (0, 10, 11, 51, 8001)] == [0.8, 0.8, 0.4, 0.2, 0.8 / 512]
    assert whole.share(99) == 0.8 / 512


@by_norm
def test_a_step_function_is_crossed_without_gradients(norm: str) -> None:
    class Steps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            level = torch.floor(100 * (x[:, :, :6].mean((1, 2, 3)) - x[:, :, 6:].mean((1, 2, 3)))) / 100
            return torch.stack([0.035 - level, level], dim=1)

    x = torch.full((4, 1, 12, 12), 0.5)
    m = ma.measure(Steps(), x, [0, 0, 0, 0], norm, attack=Square(eps=4 * RADII[norm], queries=150))
    assert bool(m.success.all())
    assert int(m.backwards.sum()) == 0


@by_norm
def test_success_rates_are_those_of_pyautoattack(norm: str) -> None:
    library = pytest.importorskip("pyautoattack.square")
    model, x, y = images((1, 15, 15), n=60)
    eps = {"linf": 0.12, "l2": 1.0, "l1": 4.0}[norm]
    theirs = []
    for seed in range(3):
        with torch.random.fork_rng():
            attack = library.SquareAttack(
                model, norm={"linf": "Linf", "l2": "L2", "l1": "L1"}[norm], eps=eps, n_queries=40, seed=seed,
                resc_schedule=False, device="cpu",
            )  # fmt: skip
            with torch.no_grad():
                theirs.append(float((model(attack.perturb(x, y)).argmax(1) != y).double().mean()))
    ours = [float(ma.measure(model, x, y, norm, attack=Square(eps=eps, queries=40), seed=seed).success.double().mean())
            for seed in range(3)]  # fmt: skip
    assert 0.1 < sum(theirs) / 3 < 0.9
    assert sum(ours) / 3 == pytest.approx(sum(theirs) / 3, abs=0.08)


@pytest.mark.parametrize(("norm", "bumps"), [("L2", Bumps(2, 2)), ("L1", Bumps(1, 4))])
@pytest.mark.parametrize("side", [3, 5, 9])
def test_bumps_are_those_of_pyautoattack(norm: str, bumps: Bumps, side: int) -> None:
    library = pytest.importorskip("pyautoattack.square")
    with torch.random.fork_rng():
        theirs = library.SquareAttack(None, norm=norm, eps=1.0, device="cpu").eta(side)
    ours = bumps._halves(side, side, theirs)
    torch.testing.assert_close(torch.minimum((ours - theirs).abs().amax(), (ours.T - theirs).abs().amax()),
                               torch.tensor(0.0), atol=1e-6, rtol=0)  # fmt: skip
