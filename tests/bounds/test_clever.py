"""CLEVER: exact where the slope is constant, near where it is known, its points uniform in their ball."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from marginattack.bounds.clever import BALLS, clever, end_point
from marginattack.core.norms import NORMS
from marginattack.errors import InputError


class Affine(nn.Module):
    def __init__(self, classes: int, d: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(classes, d, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


class Bowl(nn.Module):
    """l₀ − l₁ = 1 − ‖x‖²: at distance r from the origin the slope is 2r."""

    def forward(self, x: Tensor) -> Tensor:
        difference = 1 - x.flatten(1).square().sum(1)
        return torch.stack([difference / 2, -difference / 2], dim=1)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_linear_models_give_the_exact_margin(norm: str) -> None:
    model = Affine(4, 9)
    x = torch.rand(5, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = model(x).detach()
    y = logits.argmax(1)
    got = clever(model, x, y, norm, radius=100.0, batches=3, samples=4)
    w = model.weight.detach()
    for row, c in enumerate(y.tolist()):
        exact = [
            float((logits[row, c] - logits[row, j]) / NORMS[norm].dual((w[c] - w[j])[None])) for j in range(4) if j != c
        ]
        assert float(got.estimate[row]) == pytest.approx(min(exact), rel=1e-6)
        others = [j for j in range(4) if j != c]
        assert got.per_class[row, others].tolist() == pytest.approx(exact, rel=1e-6)
        assert float(got.per_class[row, c]) == float("inf")


def test_targeted_is_that_classes_estimate_and_untargeted_the_least() -> None:
    model = Affine(4, 9)
    x = torch.rand(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = model(x).argmax(1)
    a = (y + 2) % 4
    free = clever(model, x, y, radius=100.0, batches=2, samples=2)
    towards = clever(model, x, y, radius=100.0, batches=2, samples=2, targets=a)
    torch.testing.assert_close(towards.estimate, free.per_class.gather(1, a[:, None])[:, 0])
    torch.testing.assert_close(free.estimate, free.per_class.amin(1))
    assert bool((towards.estimate >= free.estimate).all())


def test_a_curved_model_is_within_a_tenth() -> None:
    # From the origin with R = 2 the slope is at most 2R = 4: the estimate 1/4 (the margin itself is 1).
    got = clever(Bowl(), torch.zeros(1, 5), [0], "l2", radius=2.0, batches=50, samples=50, bounds=(-9.0, 9.0))
    assert float(got.slope[0, 1]) == pytest.approx(4.0, rel=0.1)
    assert float(got.estimate) == pytest.approx(0.25, rel=0.1)
    assert float(got.slope[0, 1]) >= 3.9  # never below the largest slope seen


def test_estimates_stop_at_the_radius_and_are_zero_when_wrong_already() -> None:
    x = torch.zeros(2, 5)
    got = clever(Bowl(), x, [0, 1], "l2", radius=1e-3, batches=5, samples=5, bounds=(-9.0, 9.0))
    assert got.estimate.tolist() == [pytest.approx(1e-3), 0.0]
    flat = clever(nn.Flatten(), torch.tensor([[0.9, 0.0]]), [0], "linf", radius=9.0, batches=5, samples=5)
    assert float(flat.estimate) == pytest.approx(0.45)


def test_draws_belong_to_the_sample_and_the_seed() -> None:
    x, y = 0.1 * torch.rand(3, 5, generator=torch.Generator().manual_seed(0)), [0, 0, 0]
    kw: dict[str, Any] = {"radius": 1.0, "batches": 5, "samples": 7, "bounds": (-9.0, 9.0)}
    all_three = clever(Bowl(), x, y, **kw)
    assert torch.equal(all_three.estimate, clever(Bowl(), x, y, **kw).estimate)
    assert torch.equal(all_three.estimate[:1], clever(Bowl(), x[:1], y[:1], **kw).estimate)
    assert not torch.equal(all_three.estimate, clever(Bowl(), x, y, seed=1, **kw).estimate)


@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_points_are_uniform_in_the_ball(norm: str, d: int) -> None:
    n = 200_000
    u = torch.rand(n, d + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = BALLS[norm](u[:, :-1], u[:, -1:])
    size = NORMS[norm].size(points)[:, 0]
    assert float(size.max()) <= 1
    # Uniform in a ball: P(size ≤ r) = r^d, the directions symmetric, and half of the volume is where it should be.
    for r in (0.5, 0.8, 0.95):
        assert float((size <= r).double().mean()) == pytest.approx(r**d, abs=5 * n**-0.5)
    assert float(points.mean(0).abs().max()) < 5 * n**-0.5
    # E x² of one coordinate: 2/((d+1)(d+2)) in the ℓ1 ball, 1/(d+2) in the ℓ2 ball, 1/3 in the cube.
    second = {"l1": 2 / ((d + 1) * (d + 2)), "l2": 1 / (d + 2), "linf": 1 / 3}[norm]
    assert points.square().mean(0).tolist() == pytest.approx([second] * d, abs=5 * n**-0.5)


def test_the_end_point_of_known_maxima() -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(500, 50, generator=generator, dtype=torch.float64)
    assert end_point(3 + uniform.sqrt().sqrt().amax(1))[0] == pytest.approx(4.0, abs=0.01)
    shaped = 7 - (-torch.log(uniform[:, 0])) ** (1 / 4)  # reverse Weibull of shape 4 with its end at 7
    end, p = end_point(shaped)
    assert end == pytest.approx(7.0, abs=0.15)
    assert p > 0.05
    gumbel = -torch.log(-torch.log(uniform[:, 0]))  # has no end: the answer stays finite all the same
    assert float(gumbel.max()) <= end_point(gumbel)[0] < 30


def test_what_it_refuses() -> None:
    x = torch.zeros(1, 5)
    with pytest.raises(InputError, match="dual"):
        clever(Bowl(), x, [0], "l0", radius=1.0)
    with pytest.raises(InputError, match="radius"):
        clever(Bowl(), x, [0], "l2", radius=0.0)
