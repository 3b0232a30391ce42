"""Lipschitz bounds: certified norms of layers, and networks of deel-torchlip and orthogonium where installed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

import marginattack as ma
from marginattack.bounds.lipschitz import _convolution_norm
from marginattack.sources.preprocess import Preprocess


def images(n: int = 6, side: int = 8) -> Tensor:
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(0))


def convolutional(**options: Any) -> nn.Sequential:
    """Convolutions and linear layers of norm 1, and activations of slope 1."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, **options), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Sequential(orthogonal(nn.Linear(64, 16)), nn.LeakyReLU(0.1)), nn.Linear(16, 4),
    ).eval()  # fmt: skip


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (2, 2, 0), (5, 3, 2), (1, 1, 0)])
def test_norm_of_a_convolution_is_an_upper_bound_within_a_percent(kernel: int, stride: int, padding: int) -> None:
    """The norm of the matrix grows with the image towards that of an infinite one."""
    generator = torch.Generator().manual_seed(kernel)
    weight = torch.randn(3, 2, kernel, kernel, generator=generator, dtype=torch.float64)
    unit = torch.eye(2 * 18 * 18, dtype=torch.float64).view(-1, 2, 18, 18)
    matrix = nn.functional.conv2d(unit, weight, stride=stride, padding=padding).flatten(1)
    found, dense = _convolution_norm(weight, (stride, stride)), float(torch.linalg.matrix_norm(matrix, 2))
    assert dense <= found <= 1.05 * dense
    fine = torch.fft.fft2(weight, s=(200, 200)).permute(2, 3, 0, 1)
    if stride == 1:
        assert found <= 1.006 * float(torch.linalg.matrix_norm(fine, 2).max())


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_bounds_lie_below_the_margins_and_below_the_norms_of_other_balls(norm: str) -> None:
    model, x = convolutional(), images()
    y = model(x).argmax(1)
    margins = ma.measure(model, x, y, norm, budget=100)
    brackets = ma.bound(model, x, y, norm, upper=margins, method="lipschitz")
    assert bool((brackets.lower > 0).all())
    assert bool((brackets.lower <= margins.distance).all())
    assert set(brackets.certified_by) == {"lipschitz"}
    double = ma.bound(convolutional().double(), x, y, norm, method="lipschitz")
    torch.testing.assert_close(brackets.lower, double.lower, rtol=0.05, atol=0)  # less rounding is subtracted
    assert bool((double.lower >= brackets.lower).all())


def test_linear_models_are_closed_in_l2() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), images()
    y = model(x).argmax(1)
    free = (-float("inf"), float("inf"))
    margins = ma.measure(model, x, y, "l2", bounds=free)
    assert bool(ma.bound(model, x, y, "l2", upper=margins, bounds=free, method="lipschitz").closed.all())


def test_normalisation_in_front_counts() -> None:
    x, y = images(), convolutional()(2 * images()).argmax(1)
    scaled = Preprocess(convolutional(), statistics=((0.0,), (0.5,)))
    plain = ma.bound(convolutional(), 2 * x, y, "l2", method="lipschitz", bounds=(0, 2))
    torch.testing.assert_close(ma.bound(scaled, x, y, "l2", method="lipschitz").lower, plain.lower / 2)


def test_layers_that_are_used_again_count_again_and_may_work_in_place() -> None:
    torch.manual_seed(0)
    layer, act, double = orthogonal(nn.Linear(4, 4)), nn.ReLU(inplace=True), nn.Linear(4, 4)
    double.weight.data.copy_(2 * torch.eye(4))
    doubled = nn.Sequential(layer, double)
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    once, thrice = nn.Sequential(doubled, act), nn.Sequential(doubled, act, layer, double, act, doubled)
    for model, factor in ((once, 2), (thrice, 8)):
        logits = model.eval()(x)
        gap = logits.topk(2).values.diff(dim=1)[:, 0].abs().double()
        lower = ma.bound(model, x, logits.argmax(1), "l2", method="lipschitz").lower
        torch.testing.assert_close(lower, gap / (2**0.5 * factor), rtol=0.02, atol=1e-3)


def test_rounding_of_a_large_bias_is_no_stretch_and_the_whole_box_is_infinite() -> None:
    torch.manual_seed(0)
    last = nn.Linear(2, 2)
    last.weight.data *= 0.001
    last.bias.data.copy_(torch.tensor([1.0, 0.0]))
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), last)
    lower = ma.bound(model, torch.rand(4, 4), [0] * 4, "l2", method="lipschitz").lower
    assert bool(torch.isinf(lower).all())


def test_hooks_of_a_whole_sequence_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model.register_forward_hook(lambda _, given, logits: 10 * logits)
    with pytest.raises(ma.InputError, match="the model computes something else than its layers"):
        ma.bound(model, images(), [0] * 6, "l2", method="lipschitz")


class Cheat(nn.Linear):
    """Uses other weights than it has."""

    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


class GroupSort(nn.Module):
    """Named like a layer of torchlip, but steep."""

    __module__ = "deel.torchlip.modules"

    def forward(self, input: Tensor) -> Tensor:
        return 1.1 * input


class Residual(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return input + input.tanh()


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "other weights": (lambda: Cheat(64, 4), r"Cheat \(1\) computes something else than its weights say"),
    "by name only": (
        lambda: nn.Sequential(GroupSort(), nn.Linear(64, 4)),
        r"GroupSort \(1.0\) stretches a change 1.1 tim",
    ),
    "residual": (Residual, r"lipschitz bounds do not cover Residual \(1\): they need an nn.Sequential"),
    "a jump": (lambda: nn.Softplus(threshold=0), r"do not cover Softplus \(1\)"),
    "batch norm": (lambda: nn.BatchNorm1d(64), r"do not cover BatchNorm1d \(1\)"),
    "half precision": (lambda: nn.Linear(64, 4).bfloat16(), "model computes in bfloat16: bounds need float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_are_not_trusted(name: str) -> None:
    make, message = REFUSED[name]
    model = nn.Sequential(nn.Flatten(), make()).eval()
    with pytest.raises(ma.InputError, match=message) as error:
        ma.bound(model, images(), torch.zeros(6, dtype=torch.int64), "l2", method="lipschitz")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options", [{"padding_mode": "reflect"}, {"padding_mode": "circular", "stride": 3}, {"dilation": 2, "stride": 2}]
)
def test_convolutions_that_repeat_pixels_are_refused(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, **options), nn.Flatten())
    with pytest.raises(ma.InputError, match=r"lipschitz bounds do not cover Conv2d \(0\)"):
        ma.bound(model, images(), torch.zeros(6, dtype=torch.int64), "l2", method="lipschitz")


def test_overlapping_pools_are_refused_and_circular_and_grouped_convolutions_are_not() -> None:
    x = images()
    with pytest.raises(ma.InputError, match=r"do not cover MaxPool2d \(0\)"):
        ma.bound(nn.Sequential(nn.MaxPool2d(3, 2), nn.Flatten()), x, [0] * 6, "l2", method="lipschitz")
    torch.manual_seed(0)
    grouped = spectral_norm(nn.Conv2d(2, 4, 2, stride=2, groups=2))
    parts = nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Tanh(), grouped, nn.Flatten(), nn.Linear(64, 3)
    model = nn.Sequential(*parts).eval()
    y = model(x).argmax(1)
    lower = ma.bound(model, x, y, "l2", method="lipschitz").lower
    assert bool((lower > 0).all())
    assert bool((lower <= ma.measure(model, x, y, "l2", budget=100).distance).all())


def torchlip() -> nn.Module:
    lip = pytest.importorskip("deel.torchlip", reason="not installed: pip install 'marginattack[lipschitz]'")
    return lip.Sequential(  # type: ignore[no-any-return]
        lip.SpectralConv2d(1, 8, 3, padding=1), lip.GroupSort2(), lip.ScaledL2NormPool2d(2, 2), nn.Flatten(),
        lip.SpectralLinear(128, 32), lip.FullSort(), lip.FrobeniusLinear(32, 4),
    )  # fmt: skip


def orthogonium() -> nn.Module:
    layers = pytest.importorskip("orthogonium.layers", reason="not installed: pip install 'marginattack[lipschitz]'")
    return nn.Sequential(
        layers.AdaptiveOrthoConv2d(1, 8, 3), layers.MaxMin(), layers.AdaptiveOrthoConv2d(8, 16, 4, stride=2, padding=1),
        layers.Abs(), nn.Flatten(), layers.OrthoLinear(256, 16), layers.MaxMin(), layers.UnitNormLinear(16, 4),
    )  # fmt: skip


@pytest.mark.parametrize("make", [torchlip, orthogonium])
def test_networks_of_lipschitz_libraries(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), images()
    with torch.no_grad():
        logits = model(x)
    y = logits.argmax(1)
    margins = ma.measure(model, x, y, "l2", budget=200)
    lower = ma.bound(model, x, y, "l2", upper=margins, method="lipschitz").lower
    assert bool((lower <= margins.distance).all())
    best, second = logits.double().topk(2).values.T
    assert bool((lower >= 0.97 * (best - second) / 2).all())  # the closed form of 1-Lipschitz logits
