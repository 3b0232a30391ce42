"""bound(): certified radii below every margin, for random networks with exact answers too."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from random_networks import balanced, dense
from references import exact_margin
from torch import Tensor, nn

import marginattack as ma
from marginattack.bounds import METHODS, Relaxation
from marginattack.bounds.propagation import Propagation
from marginattack.core.flags import tf32

SLACK = 1e-9  # rounding of the reference's own distances


def dense_network(seed: int, *sizes: int) -> nn.Module:
    torch.manual_seed(seed)
    return balanced(dense(*sizes).requires_grad_(False), sizes[:1])


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("seed", range(2))
def test_bounds_lie_below_exact_margins_and_attacks_above(norm: str, seed: int) -> None:
    model = dense_network(seed, 3, 3, 2, 3)
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(seed))
    y = model(x).argmax(1)
    exact = torch.tensor([exact_margin(model, x[i], int(y[i]), norm) for i in range(len(x))], dtype=torch.float64)
    assert bool(torch.isfinite(exact).all())
    upper = ma.measure(model, x, y, norm, budget=60).distance
    assert bool((upper >= exact * (1 - 1e-5)).all())
    for method in METHODS:
        brackets = ma.bound(model, x, y, norm, method=method, tolerance=3e-3)
        assert bool((brackets.lower <= exact + SLACK).all()), method
        assert bool((brackets.lower > 0.2 * exact.clamp(max=0.5)).all()) or method == "ibp"  # not vacuous
    torch.testing.assert_close(brackets.lower, exact, rtol=3.1e-3, atol=1e-5)  # "exact" is the last of the methods
    torch.testing.assert_close(brackets.upper, exact, rtol=3.1e-3, atol=1e-5)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_no_point_inside_a_certified_ball_is_misclassified(norm: str) -> None:
    model = dense_network(0, 4, 12, 12, 4)
    x = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    radius = ma.bound(model, x, y, norm).lower.clamp(max=2.0)
    noise = torch.randn(16, 1000, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = noise.sign() if norm == "linf" else noise
    size = ma.core.norms.NORMS[norm].size(noise.flatten(0, 1)).view(16, 1000, 1)
    inside = (x.double()[:, None] + radius[:, None, None] * (1 - 1e-6) * noise / size).clamp(0, 1).float()
    labels = model(inside.flatten(0, 1)).argmax(1).view(16, 1000)
    assert bool((labels == y[:, None]).all())


def test_linear_models_are_closed() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(9, 4)), torch.rand(5, 1, 3, 3)
    y = model(x).argmax(1)
    for norm in ("l1", "l2", "linf"):
        margins = ma.measure(model, x, y, norm, budget=100)
        brackets = ma.bound(model, x, y, norm, upper=margins, method="crown")
        assert bool(brackets.closed.all())
        assert bool((brackets.lower <= margins.distance).all())


def test_rows_of_all_kinds() -> None:
    """Misclassified: 0. Classified correctly everywhere in the box: infinite. Nearest class: the least of all."""
    model = nn.Linear(2, 3).requires_grad_(False)
    model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    model.bias.data = torch.tensor([0.0, 0.0, -3.0])
    x = torch.tensor([[0.8, 0.2], [0.2, 0.8]])
    brackets = ma.bound(model, x, [0, 0], "linf", upper=torch.tensor([0.3, 0.0]))
    assert float(brackets.lower[0]) == pytest.approx(0.3, rel=0.011)
    assert brackets.lower[1] == 0
    assert brackets.upper.tolist() == [pytest.approx(0.3), 0.0]
    assert brackets.certified_by == ("alpha", "")
    assert brackets.closed.tolist() == [True, True]
    assert brackets.per_class[0].tolist()[0] == float("inf")
    assert float(brackets.per_class[0, 2]) >= float(brackets.per_class[0, 1])  # class 2 cannot win
    model.bias.data = torch.tensor([5.0, 0.0, 0.0])
    assert ma.bound(model, x, [0, 0], "l2").lower.tolist() == [float("inf")] * 2
    assert brackets.certified_accuracy(0.1) == 0.5
    assert brackets.summary()["n"] == 2
    assert "closed=100.00%" in repr(brackets)


def test_time_and_tolerance_end_the_search(
    digits: tuple[Tensor, Tensor], network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))  # it is read once per node and chunk
    for module in ("propagation", "search"):
        monkeypatch.setattr(f"marginattack.bounds.{module}.time", clock)
    brackets = ma.bound(network, digits[0][:1], digits[1][:1], "linf", time_limit=60.0)
    assert 60 <= brackets.seconds < 80  # a full search reads the clock thousands of times
    assert bool((brackets.lower > 1e-4).all())  # what intervals certified is kept
    model = dense_network(0, 4, 12, 3)
    x = torch.rand(4, 4)
    coarse, fine = (ma.bound(model, x, model(x).argmax(1), tolerance=t).lower for t in (0.5, 1e-3))
    assert bool((fine >= coarse).all())
    assert bool((fine > coarse).any())


def test_batches_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))  # it is read once per node and chunk
    for module in ("propagation", "search"):
        monkeypatch.setattr(f"marginattack.bounds.{module}.time", clock)
    model = dense_network(0, 4, 12, 12, 3)
    x = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    brackets = ma.bound(model, x, y, tolerance=1e-6, batch=1, time_limit=150.0)
    assert 600 <= brackets.seconds < 650  # each sample would take all of it
    assert bool((brackets.lower > 1e-3).all())


@pytest.mark.parametrize("method", ["ibp", "crown", "lipschitz"])
def test_certificates_beyond_an_adversarial_point_are_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense_network(0, 3, 3, 2, 3)
    x = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    margins = ma.measure(model, x, y, "l2", budget=60)
    ma.bound(model, x, y, "l2", upper=margins, method=method)
    monkeypatch.setattr(Propagation, "leads", lambda _, labels, others: (others + 1.0, 0.0 * others))
    monkeypatch.setattr("marginattack.bounds.lipschitz._factor", lambda layer: 1e-3)
    with pytest.raises(ma.InputError, match=r"sample 0 is certified to .*, but has a margin of") as error:
        ma.bound(model, x, y, "l2", upper=margins, method=method)
    assert "\n" not in str(error.value)
    distances = ma.bound(model, x, y, "l2", upper=margins.distance, method=method)  # of no known point
    assert torch.equal(distances.lower, margins.distance)


def test_batches_chunks_precision_and_sessions_change_nothing() -> None:
    model = dense_network(1, 6, 10, 10, 3)
    x = torch.rand(7, 6)
    y = model(x).argmax(1)
    expected = ma.bound(model, x, y, "l2", method="crown").lower
    for batch, chunk in ((2, 2**22), (32, 1)):
        other = ma.bound(model, x, y, "l2", method="crown", batch=batch, chunk=chunk).lower
        torch.testing.assert_close(other, expected, rtol=1e-4, atol=0.0)
    assert torch.equal(ma.bound(ma.Classifier(model), x, y, "l2", method="crown").lower, expected)
    double = ma.bound(model.double(), x, y, "l2", method="crown").lower
    torch.testing.assert_close(double, expected, rtol=1e-3, atol=0.0)
    steps = Relaxation(name="alpha", backward=True, steps=3)
    assert ma.bound(model, x, y, "l2", method=steps).settings["method"] == repr(steps)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"norm": "l0"}, "bounds need a convex ball, not l0"), ({"method": "zonotope"}, "no method named 'zonotope'"),
    ({"tolerance": 0.0}, "tolerance is 0.0"), ({"time_limit": -1.0}, "time_limit is -1.0"),
    ({"batch": 0}, "batch is 0"),
    ({"upper": torch.ones(3)}, r"upper has shape \(3,\)"), ({"upper": torch.tensor([1.0, -1.0])}, "upper .* ≥ 0"),
    ({"bounds": (-float("inf"), float("inf"))}, "bounds are infinite and so is a margin"),
    ({"model": ma.Classifier(nn.Flatten(), randomized=True)}, "the Classifier is randomised"),
    ({"model": nn.Softsign()}, "bounds do not cover"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[next(iter(each)) for each, _ in BAD])
def test_bad_input_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": nn.Flatten(), "images": torch.tensor([[0.9, 0.1], [0.2, 0.3]]), "labels": [0, 1]}
    with pytest.raises(ma.InputError, match=message) as error:
        ma.bound(**(given | changes))
    assert "\n" not in str(error.value)


def test_margins_of_something_else_are_refused() -> None:
    model, x = nn.Flatten(), torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.0]])
    margins = ma.measure(model, x, [0, 1], "l2", budget=20)
    with pytest.raises(ma.InputError, match="upper holds l2 margins, but norm is linf"):
        ma.bound(model, x, [0, 1], "linf", upper=margins)
    with pytest.raises(ma.InputError, match="upper holds margins of other labels"):
        ma.bound(model, x, [0, 2], "l2", upper=margins)
    targeted = ma.measure(model, x, [0, 1], "l2", budget=20, targets=[1, 0])
    with pytest.raises(ma.InputError, match="upper holds targeted margins"):
        ma.bound(model, x, [0, 1], "l2", upper=targeted)
    scaled = ma.measure(model, x, [0, 1], "l2", budget=20, scale=0.5)
    with pytest.raises(ma.InputError, match="upper holds scaled margins"):
        ma.bound(model, x, [0, 1], "l2", upper=scaled)
    with pytest.raises(ma.InputError, match="upper holds points outside the bounds"):
        ma.bound(model, x, [0, 1], "l2", upper=replace(margins, adversarial=margins.adversarial - 1))
    with pytest.raises(ma.InputError, match="bounds are given twice"):
        ma.bound(ma.Classifier(model), x, [0, 1], bounds=(0, 1))
    open_box = ma.bound(model, x, [0, 1], "l2", upper=margins, bounds=(-float("inf"), float("inf")))
    assert bool(open_box.closed.all())  # balls are finite, whatever the box


def test_bounds_work_where_tf32_is_switched_off_as_on_a_gpu() -> None:
    cudnn, x = torch.backends.cudnn, torch.rand(2, 4)
    model = dense_network(0, 4, 3, 2, 3)
    with tf32(False):
        brackets = ma.bound(model, x, model(x).argmax(1), "linf", method="crown")
        assert cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == "ieee"  # type: ignore[attr-defined]
    assert bool((brackets.lower > 0).all())
    assert cudnn.allow_tf32
