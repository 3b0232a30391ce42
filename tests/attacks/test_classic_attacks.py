"""DeepFool, Carlini–Wagner, L-BFGS and Boundary: known margins, and what each may not do."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from oracles import Oracle, linear, sphere
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.attack import Attack
from marginattack.attacks.boundary import Boundary
from marginattack.attacks.carlini_wagner import CarliniWagner
from marginattack.attacks.deepfool import DeepFool
from marginattack.attacks.lbfgs import LBFGS

Digits = tuple[Tensor, Tensor]
UNBOUNDED = (-torch.inf, torch.inf)


def excess(attack: Attack, oracle: Oracle, norm: str, bounds: tuple[float, float] | None = None) -> NDArray[np.float64]:
    """How far above the exact margin each sample ends, as a share of it."""
    m = ma.measure(oracle.model, oracle.images, oracle.labels, norm, attack=attack, bounds=bounds or oracle.bounds)
    share: NDArray[np.float64] = m.distance.numpy() / oracle.exact(norm) - 1
    return share


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("classes", [2, 5])
def test_deepfool_solves_a_linear_model_up_to_its_overshoot(norm: str, classes: int) -> None:
    share = excess(DeepFool(overshoot=0.05), linear(0, n=40, classes=classes, boxed=False, dtype=torch.float64), norm)
    np.testing.assert_allclose(share, 0.05, rtol=1e-6)


def test_deepfool_stops_at_a_concave_boundary_and_overshoots_a_convex_one() -> None:
    assert excess(DeepFool(), sphere(0, inside=False), "l2").max() < 0.02
    # From inside, one step lands on the tangent plane of the input's own level set: too far, and the first point counts
    inside = excess(DeepFool(), sphere(0, inside=True), "l2")
    assert 0.1 < np.median(inside) < 1.0


def test_deepfool_skips_a_class_without_a_gradient() -> None:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))  # classes 0 and 1 differ by a constant
        model.bias.copy_(torch.tensor([0.0, -0.1, 0.0]))
    m = ma.measure(model, torch.tensor([[0.5, 0.5]]), torch.tensor([0]), "l2", attack=DeepFool(), bounds=(-1.0, 1.0))
    assert m.distance.item() == pytest.approx(0.51, rel=1e-5)


def test_carlini_wagner_solves_a_linear_model_without_bounds() -> None:
    oracle = linear(1, n=40, boxed=False, dtype=torch.float64)
    share = excess(CarliniWagner(searches=7, steps=200, rate=0.03, initial=0.1), oracle, "l2", UNBOUNDED)
    assert np.median(share) < 0.02
    assert np.quantile(share, 0.9) < 0.08


def test_carlini_wagner_works_in_units_of_the_box() -> None:
    oracle, attack = linear(2, n=20, boxed=True, dtype=torch.float64), CarliniWagner(searches=4, steps=60, rate=0.05)
    wide = nn.Linear(30, 5, dtype=torch.float64)
    weight, bias = oracle.model.parameters()
    with torch.no_grad():
        wide.weight.copy_(weight / 256)
        wide.bias.copy_(bias)
    small = ma.measure(oracle.model, oracle.images, oracle.labels, "l2", attack=attack)
    large = ma.measure(wide, 256 * oracle.images, oracle.labels, "l2", attack=attack, bounds=(0.0, 256.0))
    torch.testing.assert_close(large.distance, 256 * small.distance, rtol=1e-6, atol=0)


def test_carlini_wagner_for_linf_beats_that_for_l2_in_linf(network: nn.Module, digits: Digits) -> None:
    x, y = digits[0][:2], digits[1][:2]
    attack = CarliniWagner(searches=3, steps=60, rate=0.05, initial=1.0)
    linf = ma.measure(network, x, y, "linf", attack=attack)
    l2 = ma.measure(network, x, y, "l2", attack=attack)
    assert bool(linf.success.all())
    assert bool((linf.distance < (l2.adversarial - x).flatten(1).abs().amax(1)).all())
    assert linf.distance.median() < 0.2


def test_carlini_wagner_for_linf_leaves_the_bounds_at_once(network: nn.Module, digits: Digits) -> None:
    """Most pixels of a digit are at a bound, where tanh is flat: with it 900 slow steps ended at 4 margins."""
    x, y = digits[0][:2], digits[1][:2]
    slow = ma.measure(network, x, y, "linf", attack=CarliniWagner(searches=3, steps=50, rate=0.01))
    best = ma.measure(network, x, y, "linf", budget=100)
    assert (slow.distance < 1.5 * best.distance).all()


def test_early_abort_saves_passes_and_hardly_changes_the_result() -> None:
    oracle = linear(3, n=40, boxed=True, dtype=torch.float64)
    attack = CarliniWagner(searches=4, steps=200, rate=0.03)
    full, short = (
        ma.measure(oracle.model, oracle.images, oracle.labels, "l2", attack=a)
        for a in (replace(attack, abort=False), attack)
    )
    assert short.forwards.sum() < 0.95 * full.forwards.sum()
    assert float((short.distance / full.distance).median()) < 1.01
    assert int(full.forwards.min()) == 4 * 200


@pytest.mark.parametrize("boxed", [True, False])
def test_lbfgs_solves_a_linear_model(boxed: bool) -> None:
    assert excess(LBFGS(), linear(4, n=20, classes=2, boxed=boxed, dtype=torch.float64), "l2").max() < 0.005
    # With more classes it moves towards the most likely, which need not be the nearest.
    assert np.median(excess(LBFGS(), linear(4, n=20, boxed=boxed, dtype=torch.float64), "l2")) < 0.005


def test_boundary_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    oracle = linear(7, n=2, boxed=True, dtype=torch.float64)
    with pytest.raises(ma.InputError, match=r"pip install .marginattack\[peers\]"):
        ma.measure(oracle.model, oracle.images, oracle.labels, "l2", attack=Boundary())


def test_boundary_moves_nearer_and_restores_the_generator() -> None:
    pytest.importorskip("foolbox")
    oracle = linear(8, n=3, d=8, boxed=True, dtype=torch.float64)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    runs = [
        ma.measure(oracle.model, oracle.images, oracle.labels, "l2", attack=Boundary(steps=steps)) for steps in (200, 5)
    ]
    assert torch.equal(torch.rand(1), expected)
    assert bool((runs[0].distance < runs[1].distance).all())


def test_boundary_respects_bounds_per_coordinate() -> None:
    pytest.importorskip("foolbox")
    oracle = linear(9, n=3, d=8, classes=3, boxed=True, dtype=torch.float64)
    lo, hi = torch.linspace(-0.5, 0, 8), torch.linspace(1, 3, 8)
    m = ma.measure(
        oracle.model, oracle.images, oracle.labels, "l2", attack=Boundary(steps=100), bounds=(lo, hi), budget=90
    )
    assert bool(m.success.any())
    assert bool(((m.adversarial >= lo) & (m.adversarial <= hi)).all())


def test_boundary_without_a_start_finds_nothing() -> None:
    pytest.importorskip("foolbox")
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.zero_()
    label = model(torch.zeros(1, 3)).argmax(1)
    m = ma.measure(model, torch.full((1, 3), 0.5), label, "l2", attack=Boundary(directions=5))
    assert m.distance.tolist() == [torch.inf]
