"""Race: the default attack, its use of a budget, and what it must not depend on."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.race.phases import CURVED, MASKED_SPARSE, SPARSE
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo


class Scaled(nn.Module):
    """A small network on digits of any range, with logits of any size."""

    def __init__(self, pixels: float, logits: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first = nn.Parameter(torch.randn(49, 24, generator=generator, dtype=torch.float64) / 3)
        self.second = nn.Parameter(torch.randn(24, 5, generator=generator, dtype=torch.float64))
        self.pixels, self.logits = pixels, logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits * (torch.tanh((x / self.pixels - 0.5) @ self.first) @ self.second)


def digits(n: int = 12) -> tuple[Tensor, Tensor]:
    images = nn.functional.adaptive_avg_pool2d(samples("mnist", n)[0], 7).flatten(1).double()
    return images, Scaled(1.0, 1.0)(images).argmax(1).detach()


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("budget", [100, 400])
def test_units_of_pixels_and_logits_do_not_matter(norm: str, budget: int) -> None:
    x, y = digits()
    plain = ma.measure(Scaled(1.0, 1.0), x, y, norm, budget=budget).distance
    for pixels, logits in ((256.0, 2.0**-12), (2.0**-6, 1024.0)):
        scaled = ma.measure(Scaled(pixels, logits), x * pixels, y, norm, bounds=(0, pixels), budget=budget).distance
        torch.testing.assert_close(scaled / pixels, plain, rtol=1e-3, atol=0)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_more_passes_find_nearer_points(norm: str) -> None:
    x, y = digits(24)
    means = [ma.measure(Scaled(1.0, 1.0), x, y, norm, budget=budget).distance.mean() for budget in (20, 60, 700)]
    assert min(means[0], means[1]) > means[2]


def test_fewer_coordinates_with_more_passes() -> None:
    """And fewer than with the phases of the other norms; measured: 6.6, 6.3 and 8.1 on average."""
    x, y = samples("mnist", 24)
    model = zoo("mnist-cnn")
    short, long = (ma.measure(model, x, y, "l0", budget=budget).distance.mean() for budget in (60, 400))
    assert long < short
    assert short < ma.measure(model, x, y, "l0", attack=ma.Race(sparse=CURVED), budget=60).distance.mean()


def test_fewer_coordinates_with_few_passes_where_gradients_are_masked() -> None:
    """By σ-zero's step and a restart at the incumbent; measured: 0.27 of what corners find, 0.80 of one search."""
    x, y = samples("mnist", 16)
    once = replace(MASKED_SPARSE, short=replace(MASKED_SPARSE.short, search=MASKED_SPARSE.short.search[:1]))
    both, corners, single = (
        ma.measure(zoo("mnist-cnn-adv"), x, y, "l0", attack=attack, budget=100).distance.mean()
        for attack in (ma.Race(), ma.Race(masked_sparse=SPARSE), ma.Race(masked_sparse=once))
    )
    assert both < 0.4 * corners
    assert both < 0.95 * single


def test_it_beats_marginattack_where_gradients_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's network of k-winners-take-all layers, which is discontinuous; measured: 3 and 11 % nearer."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    model = importlib.import_module("networks").network("mnist-kwta")
    x, _ = samples("mnist", 20)
    y = model(x).argmax(1)
    for norm in ("l2", "linf"):
        race, before = (
            ma.measure(model, x, y, norm, attack=name, budget=400).distance.mean() for name in ("race", "marginattack")
        )
        assert race < 0.985 * before


def test_a_random_start_leaves_flat_inputs() -> None:
    """No gradient at the input, nor anywhere near it."""

    class Plateau(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            height = torch.relu(x.flatten(1).sub(0.6)).sum(1, keepdim=True)
            return torch.cat([torch.full_like(height, 0.5), height], dim=1)

    x = torch.full((3, 8), 0.2)
    found = ma.measure(Plateau(), x, torch.zeros(3, dtype=torch.int64), "l2")
    assert found.success.all()


@pytest.mark.parametrize("norm", ["l0", "l1", "l2", "linf"])
def test_infinite_bounds(norm: str) -> None:
    x, y = digits()
    free = ma.measure(Scaled(1.0, 1.0), x, y, norm, bounds=(-torch.inf, torch.inf))
    boxed = ma.measure(Scaled(1.0, 1.0), x, y, norm)
    assert free.success.all()
    assert free.distance.mean() < boxed.distance.mean() or norm == "l0"


@pytest.mark.parametrize("setting", [{"passes": 0}, {"candidates": -1}])
def test_settings_out_of_range_raise(setting: dict[str, int]) -> None:
    with pytest.raises(ma.InputError, match=rf"{next(iter(setting))} is .* must be at least"):
        ma.Race(**setting)  # type: ignore[arg-type]


def test_with_three_passes_the_tangent_point_is_still_queried() -> None:
    x, y = digits(24)
    found = ma.measure(Scaled(1.0, 1.0), x, y, "l2", budget=3)
    assert found.success.any()
    assert (found.forwards + found.backwards).max() == 3
