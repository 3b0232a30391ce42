"""JSMA and OnePixel: what they may change, and that they choose by their equations."""

from itertools import pairwise

import pytest
import torch
from problems import pose, validated
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.jsma import JSMA, Pairs, Single
from marginattack.attacks.one_pixel import OnePixel
from marginattack.core.losses import AGAINST_REST, OWN


class Linear(nn.Module):
    """Logits W x + b for inputs of any shape."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(len(weight)) if bias is None else bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class OnlyPixel(nn.Module):
    """Class 1 where all channels of one pixel are bright; the logits grow towards it."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__()
        self.pixel = (row, column)

    def forward(self, x: Tensor) -> Tensor:
        bright = x[:, :, self.pixel[0], self.pixel[1]].amin(1) - 0.7
        return torch.stack([-bright, bright], dim=1)


def linear(d: int = 12, classes: int = 4, seed: int = 0) -> tuple[Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = Linear(torch.randn(classes, d, generator=generator))
    x = 0.2 + 0.6 * torch.rand(6, d, generator=generator)
    return model, x, model(x).argmax(1)


def best_pair(a: Tensor, b: Tensor) -> float:
    """Alg. 3 of the paper, pair by pair."""
    best = 0.0
    for p in range(len(a)):
        for q in range(p + 1, len(a)):
            first, second = float(a[p] + a[q]), float(b[p] + b[q])
            if first > 0 and second > 0:
                best = max(best, first * second)
    return best


@pytest.mark.parametrize("correlation", [-1.0, -0.9, 0.0, 0.9])
@pytest.mark.parametrize("d", [2, 3, 25])
def test_pairs_are_the_best_of_all_pairs(d: int, correlation: float) -> None:
    generator = torch.Generator().manual_seed(d)
    a = torch.randn(40, d, generator=generator, dtype=torch.float64)
    b = correlation * a + (1 - correlation**2) ** 0.5 * torch.randn(40, d, generator=generator, dtype=torch.float64)
    b += 0.3  # with correlation −1 both sums are positive only this way
    a[::4, 0] = b[::4, 0] = -torch.inf  # a feature that must not move
    a[1::4], b[1::4] = a[1::4].round(), b[1::4].round()  # ties
    score, chosen = Pairs()(a, b)
    for row in range(len(a)):
        assert float(score[row]) == pytest.approx(best_pair(a[row], b[row]))
        assert int(chosen[row].sum()) == (2 if score[row] > 0 else 0)
        if score[row] > 0:
            assert float(a[row, chosen[row]].sum() * b[row, chosen[row]].sum()) == pytest.approx(float(score[row]))


def test_pairs_are_exact_when_searched_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(5, 30, generator=generator)
    b = 0.2 - a  # no feature is exceeded: every pair is compared
    at_once = Pairs()(a, b)
    monkeypatch.setattr("marginattack.attacks.jsma.PAIRS_AT_ONCE", 400)
    torch.testing.assert_close(Pairs()(a, b), at_once)


def test_pairs_of_many_features_fit_in_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(64, 3072, generator=generator), torch.randn(64, 3072, generator=generator)
    score, chosen = Pairs()(a, b)
    assert bool((chosen.sum(1) == 2).all())
    sums = a[0, :, None] + a[0], b[0, :, None] + b[0]
    every = torch.where((sums[0] > 0) & (sums[1] > 0), sums[0] * sums[1], 0).fill_diagonal_(0)
    assert float(score[0]) == pytest.approx(float(every.max()))


@pytest.mark.parametrize("theta", [1.0, -1.0])
def test_jsma_first_moves_the_papers_pair(theta: float) -> None:
    model, x, _ = linear()
    x, target = x[:1], torch.tensor([0])
    model.bias.data[0] = -100.0  # never reached, so that exactly one step is seen
    y = model(x).argmax(1)
    seen: list[Tensor] = []
    problem = pose(model, x, y, norm=ma.L0, targets=target, budget=6)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    problem.solve(JSMA(theta=theta, both=False, of=(OWN, AGAINST_REST)))
    assert len(seen) == 2
    moved = (seen[1] != seen[0])[0]
    a = theta * model.weight.detach()[0]
    b = theta * (model.weight.detach()[0] - model.weight.detach().sum(0))
    assert float(a[moved].sum() * b[moved].sum()) == pytest.approx(best_pair(a, b))
    assert bool((seen[1][0, moved] == (1.0 if theta > 0 else 0.0)).all())


def test_jsma_with_single_features_first_moves_the_most_salient_one() -> None:
    """Their Eq. 8: the largest −∂F_t Σ∂F_j, both factors of the right sign."""
    model, x, _ = linear()
    x, target = x[:1], torch.tensor([0])
    model.bias.data[0] = -100.0  # never reached, so that exactly one step is seen
    seen: list[Tensor] = []
    problem = pose(model, x, model(x).argmax(1), norm=ma.L0, targets=target, budget=6)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    problem.solve(JSMA(both=False, of=(OWN, AGAINST_REST), saliency=Single()))
    a, b = model.weight.detach()[0], -model.weight.detach()[1:].sum(0)
    salient = torch.where((a > 0) & (b > 0) & (x[0] < 1), a * b, 0)
    assert (seen[1] != seen[0])[0].nonzero().flatten().tolist() == [int(salient.argmax())]


@pytest.mark.parametrize("saliency", [Pairs(), Single()])
@pytest.mark.parametrize("gamma", [0.05, 0.2, 0.5])
def test_jsma_changes_few_features_in_steps_of_theta(saliency: Pairs | Single, gamma: float) -> None:
    model, x, y = linear(d=40)
    model.bias.data += 1000 * nn.functional.one_hot(y[:1], 4)[0]  # out of reach, so that all steps are made
    x, y = x[y == y[0]], y[y == y[0]]
    seen: list[Tensor] = []
    problem = pose(model, x, y, norm=ma.L0)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    problem.solve(JSMA(theta=0.25, gamma=gamma, saliency=saliency))
    path = [points for points in seen if len(points) == len(x)]
    for before, after in pairwise(path):
        step = after - before
        at_bound = (after == 0) | (after == 1)
        assert bool((torch.isclose(step.abs(), torch.tensor(0.25)) | (step == 0) | at_bound).all())
        assert int((step != 0).sum(1).max()) <= saliency.features
    assert int((path[-1] != x).sum(1).max()) == int(gamma * 40)
    assert bool(((path[-1] >= 0) & (path[-1] <= 1)).all())


@pytest.mark.parametrize("saliency", [Pairs(), Single()])
def test_jsma_reaches_its_target(saliency: Pairs | Single) -> None:
    model, x, y = linear(d=30)
    targets = (y + 1) % 4
    m = ma.measure(model, x, y, "l0", attack=JSMA(saliency=saliency), targets=targets)
    assert bool(m.success.all())
    assert m.adversarial_label.tolist() == targets.tolist()
    assert float(m.distance.max()) < 15


def test_jsma_ends_on_a_constant_model_and_in_another_box() -> None:
    x, y = torch.full((3, 5), 2.0), torch.zeros(3, dtype=torch.int64)
    m = ma.measure(Linear(torch.zeros(2, 5), torch.tensor([2.0, 0.0])), x, y, "l0", attack=JSMA(), bounds=(-3.0, 4.0))
    assert not bool(m.success.any())
    # x₁ + x₂ must rise from 4 to above 7, which takes both of them at the upper bound.
    weight = torch.tensor([[0.0, 0.0, 0, 0, 0], [1, 1, 0, 0, 0]])
    m = ma.measure(Linear(weight, torch.tensor([7.0, 0.0])), x, y, "l0", attack=JSMA(), bounds=(-3.0, 4.0))
    assert m.distance.tolist() == [2, 2, 2]
    assert m.adversarial[0].tolist() == [4, 4, 2, 2, 2]


@pytest.mark.parametrize("channels", [1, 3])
def test_one_pixel_finds_the_only_pixel_that_matters(channels: int) -> None:
    x, y = torch.full((2, channels, 5, 7), 0.1), torch.zeros(2, dtype=torch.int64)
    m = ma.measure(OnlyPixel(3, 6), x, y, "l0", attack=OnePixel(population=200, generations=60))
    changed = (m.adversarial != x).nonzero()
    assert bool(m.success.all())
    assert changed[:, 2:].unique(dim=0).tolist() == [[3, 6]]
    assert m.distance.tolist() == [channels, channels]


@pytest.mark.parametrize("pixels", [1, 3])
def test_one_pixel_changes_at_most_k_pixels_inside_the_box(pixels: int) -> None:
    generator = torch.Generator().manual_seed(1)
    model = Linear(torch.randn(3, 2 * 4 * 4, generator=generator))
    x = torch.rand(5, 2, 4, 4, generator=generator) * 4 - 1
    y = model(x).argmax(1)
    seen: list[Tensor] = []
    with validated(ma.Classifier(model, bounds=(-1.0, 3.0)), x, y, (y + 1) % 3) as (session, batch):
        problem = session.problem(batch, ma.L0)
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
        problem.solve(OnePixel(pixels=pixels, population=40, generations=3))
    assert seen
    for points in seen:
        sample = int((points.flatten(1).median(0).values - x.flatten(1)).abs().sum(1).argmin())
        assert int((points != x[sample]).any(1).flatten(1).sum(1).max()) <= pixels
        assert float(points.min()) >= -1
        assert float(points.max()) <= 3


def test_one_pixel_stops_when_a_point_is_found() -> None:
    x, y = torch.full((1, 1, 5, 7), 0.1), torch.zeros(1, dtype=torch.int64)
    found = ma.measure(OnlyPixel(3, 6), x, y, "l0", attack=OnePixel(population=200, generations=60))
    assert int(found.forwards) < 61 * 198
