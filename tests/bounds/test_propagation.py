"""Bound propagation: tight as its relaxation allows, below every point, for every layer that it covers."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from references import Ball, crown, layers, solve
from torch import Tensor, nn
from torch.nn import functional

from marginattack.bounds.graph import Graph, trace
from marginattack.bounds.propagation import ALPHA, CROWN, IBP, Limits, Propagation, Relaxation
from marginattack.bounds.regions import Region, least, make_region
from marginattack.bounds.relaxations import ReLU, Smooth
from marginattack.core.norms import NORMS

FEW_STEPS = replace(ALPHA, steps=4)  # any slopes must hold, not the best alone
RADII = {"l1": 0.5, "l2": 0.2, "linf": 0.03}
ZERO, ONE = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)


def region_of(x: Tensor, norm: str, radius: float, dtype: torch.dtype = torch.float64) -> Region:
    return make_region(NORMS[norm], x.double(), ZERO, ONE, torch.full((len(x),), radius, dtype=torch.float64)).to(dtype)


def logit_bounds(graph: Graph, region: Region, method: Relaxation, chunk: int = 2**22) -> Tensor:
    classes = graph.nodes[-1].shape[0]
    rows = torch.eye(classes, dtype=region.centre.dtype)
    rows = torch.cat([rows, -rows, rows - rows.roll(1, 0)]).expand(len(region.centre), -1, -1)
    with torch.no_grad():
        propagation = Propagation(graph.to(region.centre.dtype), region, method, Limits(chunk))
    return propagation.output(rows)[0]


def points_in(x: Tensor, norm: str, radius: float, count: int) -> Tensor:
    """Points of the ball and the box, many of them at the border, in the precision of x."""
    generator = torch.Generator().manual_seed(1)
    d = x[0].numel()
    noise = torch.randn(count, d, generator=generator, dtype=torch.float64)
    if norm == "l1":
        noise = noise * (torch.rand(count, d, generator=generator) < 3 / d)
    noise = noise.sign() if norm == "linf" else noise
    size = NORMS[norm].size(noise).clamp(min=1e-9)
    points = x[:, None].double().flatten(2) + radius * (1 - 1e-6) * noise / size
    return points.clamp(0, 1).to(x.dtype).view(-1, *x.shape[1:])


def mlp(*sizes: int, scale: float = 1.0, seed: int = 0, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), activation()]
    model = nn.Sequential(*parts[:-1]).requires_grad_(False)
    for module in model:
        if isinstance(module, nn.Linear):
            module.weight *= scale
    return model


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.1), ("l1", 0.3)])
def test_crown_is_the_linear_program_of_its_relaxation(norm: str, radius: float, seed: int) -> None:
    model = mlp(5, 8, 7, 3, scale=2.0, seed=seed)
    x = torch.rand(1, 5)
    got = logit_bounds(trace(model, x), region_of(x, norm, radius), CROWN)[0]
    unit = np.eye(3)
    rows = np.concatenate([unit, -unit, unit - np.roll(unit, 1, 0)])
    ball = Ball(x.double().numpy().ravel(), radius, norm)
    np.testing.assert_allclose(got.numpy(), crown(layers(model), rows, ball), atol=1e-4)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_alpha_is_never_looser_than_crown_and_often_tighter(norm: str) -> None:
    model, x = mlp(6, 20, 20, 4, scale=2.0), torch.rand(8, 6)
    graph, region = trace(model, x), region_of(x, norm, 3 * RADII[norm])
    plain, optimised = (logit_bounds(graph, region, method) for method in (CROWN, ALPHA))
    gain = optimised - plain
    whole = region_of(x, norm, 9.0)  # the box alone binds
    assert bool((logit_bounds(graph, whole, ALPHA) > logit_bounds(graph, whole, CROWN) + 1e-3).any())
    open_ = plain <= 0  # it stops once everything is positive
    assert bool((gain >= 0).all())
    assert float((gain[open_] > 1e-3).double().mean()) > 0.5


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 4, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.4) / torch.tensor([0.5, 0.3]).view(2, 1, 1)
        x = torch.relu(x + self.a(x))
        shortcut = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 2))
        return functional.relu_(self.b(x) - 0.5 * shortcut).mean((2, 3))


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([x.tanh(), 1 - x, -x], dim=1)
        y = functional.leaky_relu(y.permute(0, 2, 3, 1) * torch.linspace(-1, 1, 6), 0.1)
        return y.transpose(1, 3).reshape(len(x), -1)[:, 3:40:7]


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(1)[:, :6] * 2.0
        y.sub_(1.0)
        z = y.relu_()
        return y + z  # twice the ReLU


def network(*parts: nn.Module, size: int = 0) -> nn.Sequential:
    """Layers on images (2, 6, 6), with a fully connected layer at the end where a size is given."""
    torch.manual_seed(0)
    head = [nn.Flatten(), nn.Linear(size, 3)] if size else []
    model = nn.Sequential(*parts, *head)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features)
            module.running_var = torch.rand(module.num_features) + 0.5
            module.weight = nn.Parameter(torch.randn(module.num_features))
    return model.eval().requires_grad_(False)


NETWORKS: dict[str, Any] = {
    "batch norm, max-pool": lambda: network(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), size=27
    ),
    "overlapping pools": lambda: network(
        nn.Conv2d(2, 4, 3, padding=1, groups=2),
        nn.MaxPool2d(3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.ReLU(),
        size=12,
    ),
    "strides": lambda: network(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(4, 3, 2, dilation=2), nn.ReLU(), size=3
    ),
    "average pools": lambda: network(
        nn.AvgPool2d(3, 1, 1), nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 3)), nn.ReLU(), size=24
    ),
    "adaptive max-pool": lambda: network(nn.Conv2d(2, 4, 1), nn.GELU(), nn.AdaptiveMaxPool2d(2), size=16),
    "gelu": lambda: mlp(72, 12, 9, 3, scale=3.0, activation=nn.GELU),
    "gelu, tanh": lambda: network(nn.Flatten(), nn.Linear(72, 9), nn.GELU(approximate="tanh"), size=9),
    "silu": lambda: mlp(72, 12, 9, 3, scale=3.0, activation=nn.SiLU),
    "sigmoid": lambda: mlp(72, 12, 9, 3, scale=3.0, activation=nn.Sigmoid),
    "tanh": lambda: mlp(72, 12, 9, 3, scale=3.0, activation=nn.Tanh),
    "dropout": lambda: network(nn.Dropout(), nn.Flatten(), nn.Linear(72, 9), nn.ReLU(inplace=True), size=9),
    "wide padding": lambda: network(
        nn.Conv2d(2, 2, 2, padding=3), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2, padding=4), nn.ReLU(), size=162
    ),
    "linear on rows": lambda: network(nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Linear(6, 1), nn.ReLU(), size=12),
    "residual": lambda: network(Residual()),
    "branches": lambda: network(Branches()),
    "in place": lambda: network(InPlace()),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_no_point_of_the_region_is_below_the_bounds(name: str) -> None:
    model = NETWORKS[name]()
    x = torch.rand(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    graph = trace(model, x)
    for norm, radius in RADII.items():
        logits = model(points_in(x, norm, radius, 400)).double()
        seen = torch.cat([logits, -logits, logits - logits.roll(1, 1)], dim=1).view(2, 400, -1).amin(1)
        for dtype in (torch.float32, torch.float64):
            for method in (IBP, CROWN, FEW_STEPS) if dtype == torch.float64 else [CROWN]:
                bounds = logit_bounds(graph, region_of(x, norm, radius, dtype), method).double()
                assert bool((bounds <= seen).all()), (norm, dtype, method.name)
                if method is CROWN and norm == "linf":  # not vacuous: most of the way from the centre to the least
                    centre = model(x).double()
                    middle = torch.cat([centre, -centre, centre - centre.roll(1, 1)], dim=1)
                    assert float(((middle - seen) / (middle - bounds)).median()) > 0.2


def test_windows_and_chunks_change_nothing() -> None:
    parts: list[nn.Module] = [
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.ReLU(),
    ]
    model = network(*parts, size=64)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    graph = trace(model, x)
    # The same network with its convolutions written out as matrices has no windows.
    parts = [nn.Flatten()]
    shape: tuple[int, ...] = (1, 8, 8)
    for module in model:
        if isinstance(module, nn.Conv2d):
            d = int(np.prod(shape))
            origin = module(torch.zeros(1, *shape))
            dense = nn.Linear(d, origin.numel())
            dense.weight.data = (module(torch.eye(d).view(d, *shape)) - origin).flatten(1).T.contiguous()
            dense.bias.data = origin.flatten()
            shape = tuple(origin.shape[1:])
            parts.append(dense)
        elif not isinstance(module, nn.Flatten):
            parts.append(module)
    written_out = trace(nn.Sequential(*parts).requires_grad_(False), x)
    for norm, radius in RADII.items():
        region = region_of(x, norm, radius)
        expected = logit_bounds(written_out, region, CROWN)
        for chunk in (2**22, 1):
            torch.testing.assert_close(logit_bounds(graph, region, CROWN, chunk), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
@pytest.mark.parametrize("method", [CROWN, ALPHA])
def test_leads_are_computed_in_chunks(
    method: Relaxation, activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = mlp(6, 20, 20, 9, scale=3.0, activation=activation), torch.rand(3, 6)
    graph, region, labels = trace(model, x), region_of(x, "linf", 0.9), torch.tensor([0, 4, 8])
    others = torch.arange(9).expand(3, 9)
    whole = Propagation(graph.to(torch.float64), region, method).leads(labels, others)
    unit = torch.eye(9, dtype=torch.float64)
    plain = Propagation(graph.to(torch.float64), region, method).output(unit[labels][:, None] - unit)
    assert bool((plain[0] <= 0).all())  # it would end once everything is positive
    sizes: list[int] = []
    output = Propagation.output

    def counted(self: Propagation, rows: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(rows.shape[1])
        return output(self, rows)

    monkeypatch.setattr(Propagation, "output", counted)
    smooth = activation is nn.GELU and method is ALPHA
    chunk = 3 * 20 * 2 * (48 if smooth else 1)  # two functions of all samples' widest layer
    parts = Propagation(graph.to(torch.float64), region, method, Limits(chunk)).leads(labels, others)
    assert sizes == [2, 2, 2, 2, 1]
    rtol = 0.2 if smooth else 1e-9  # a chord touches at both ends: rounding decides which of them Adam follows
    for found, expected, same in zip(parts, plain, whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-9)
        torch.testing.assert_close(same, expected, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_linear_functions_are_minimised_over_ball_and_box(norm: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 5, generator=generator, dtype=torch.float64)
    x[0, :3] = torch.tensor([0.0, 1.0, 1.0])
    a = torch.randn(6, 4, 5, generator=generator, dtype=torch.float64)
    a[1, 0], a[2, :, :2], a[3, 1] = 0, 0, a[3, 1].sign()
    for radius in (0.01, 0.3, 0.9, 20.0):
        region = region_of(x, norm, radius)
        got = least(region, a, region.down[:, None], region.up[:, None])
        for i, row in np.ndindex(6, 4):
            assert float(got[i, row]) == pytest.approx(
                _minimum(a[i, row].numpy(), x[i].numpy(), norm, radius), abs=1e-6
            )


def _minimum(a: Any, x: Any, norm: str, radius: float) -> float:
    box = [(max(-v, -radius), min(1 - v, radius)) for v in x]
    if norm == "linf":
        return solve(a, bounds=box)
    if norm == "l1":  # the two signs of each coordinate apart
        parts = [*((0, up) for _, up in box), *((0, -down) for down, _ in box)]
        return solve([*a, *-a], [[1.0] * (2 * len(a))], [radius], bounds=parts)
    low, high = 0.0, 1e9  # l2: the multiplier by bisection
    for _ in range(200):
        multiplier = (low + high) / 2 if high < 1 else np.sqrt(max(low, 1e-12) * high)
        step = np.clip(-a / multiplier, *np.array(box).T)
        low, high = (multiplier, high) if (step**2).sum() > radius**2 else (low, multiplier)
    return float(a @ np.clip(-a / high, *np.array(box).T))


def test_rounding_is_charged_where_float32_is_coarse() -> None:
    """Sums that cancel: in float32 their order alone changes a logit by more than a bound without rounding leaves."""
    torch.manual_seed(0)
    model = nn.Linear(3000, 2).requires_grad_(False)
    model.weight.data = torch.randn(2, 3000) * 1e4
    x = torch.rand(1, 3000)
    bounds = logit_bounds(trace(model, x), region_of(x, "linf", 1e-12), CROWN)[0]
    exact = float((x.double() @ model.weight.double().T + model.bias.double())[0, 0])
    orders = [torch.randperm(3000) for _ in range(8)]
    computed = [float(x[0, order] @ model.weight[0, order] + model.bias[0]) for order in orders]
    assert max(computed) - min(computed) > 0
    assert float(bounds[0]) < min(exact, *computed)


@pytest.mark.parametrize("name", ["gelu", "gelu, tanh", "silu", "sigmoid", "tanh"])
def test_lines_enclose_smooth_activations(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rule = next(
        node.rule for node in trace(NETWORKS[name](), torch.rand(1, 2, 6, 6)).nodes if isinstance(node.rule, Smooth)
    )
    middle, width = 3 * torch.randn(300, 1, generator=generator), torch.logspace(-6, 1, 300)[:, None]
    lo, hi = (middle - width).double(), (middle + width).double()
    x = torch.lerp(lo, hi, torch.linspace(0, 1, 2001, dtype=torch.float64))
    y = rule.value(x)
    computed = rule.value(x.float()).where((x.float() >= lo) & (x.float() <= hi), y.float()).double()
    for values, model in ((y, torch.float64), (computed, torch.float32)):
        low, high = rule.image(lo, hi, model)
        assert bool((low <= values.amin(1, keepdim=True)).all())
        assert bool((high >= values.amax(1, keepdim=True)).all())
    free = [torch.randn(300, 1, 1, generator=generator).double() for _ in range(2)]
    for slopes in ([], free):
        lines = rule.lines(lo, hi, slopes)
        assert lines.lower_offset is not None
        assert bool((lines.lower_slope[:, 0] * x + lines.lower_offset[:, 0] <= y).all())
        assert bool((lines.upper_slope[:, 0] * x + lines.upper_offset[:, 0] >= y).all())


def test_leaky_slopes_are_not_rounded_to_float32() -> None:
    lo, hi = torch.tensor([[-2.0, -2.0]]).double(), torch.tensor([[-1.0, 1.0]]).double()
    lines = ReLU(slope=0.2).lines(lo, hi, [])
    assert lines.lower_slope.flatten().tolist() == [0.2, 0.2]


class Copies(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x - 0.5
        changed, kept = y.clone(), y.clone()
        changed.relu_()
        return kept - 2 * changed


class EditsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sub_(0.5).relu()


@pytest.mark.parametrize("model", [Copies(), EditsInput()], ids=lambda each: type(each).__name__)
def test_changes_in_place_reach_what_they_should(model: nn.Module) -> None:
    x = torch.rand(3, 4)
    torch.testing.assert_close(trace(model, x + 1).value(x), model(x.clone()))


def test_intervals_are_the_loosest() -> None:
    model, x = mlp(6, 10, 10, 3), torch.rand(4, 6)
    graph, region = trace(model, x), region_of(x, "linf", 0.05)
    assert bool((logit_bounds(graph, region, IBP) <= logit_bounds(graph, region, CROWN) + 1e-6).all())
