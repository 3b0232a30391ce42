"""Bounds, scales and fixed features: exact where margins are known, in the user's units everywhere."""

from typing import Any

import numpy as np
import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks

UNITS = torch.tensor([40.0, 1e5, 0.01, 3.0])  # years, money, a rate, a count: a table's features
WEIGHTS = torch.tensor([0.05, 2e-5, -150.0, 0.4])
ROWS = torch.tensor([[30.0, 4e4, 0.02, 2.0], [65.0, 9e4, 0.01, 1.0], [50.0, 2e4, 0.05, 7.0]])
DUAL = {"l1": float("inf"), "l2": 2.0, "linf": 1.0}
ATTACKS: list[tuple[Any, int | None]] = [(None, 60), (ma.MarginAttack(moves=24, closing=8, follow=0), None)]


def table(dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, Tensor, Tensor]:
    """A linear classifier of rows whose features have very different units."""
    model = nn.Linear(4, 2, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.stack([WEIGHTS, -WEIGHTS]) / 2)
        images = ROWS.to(dtype)
        return model, images, model(images).argmax(1)


def exact(norm: str, scale: Tensor, free: Tensor) -> list[float]:
    """The distance of each row to the hyperplane, among perturbations of the free features, in units of the scale."""
    slope = (WEIGHTS.double() * scale.double())[free]
    distance = (ROWS.double() @ WEIGHTS.double()).abs() / torch.linalg.vector_norm(slope, DUAL[norm])
    values: list[float] = distance.tolist()
    return values


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize(("attack", "budget"), ATTACKS)
def test_a_scale_gives_the_margin_of_the_weighted_norm(norm: str, attack: Any, budget: int | None) -> None:
    model, rows, labels = table()
    bounds = (-np.inf, np.inf)
    m = ma.measure(model, rows, labels, norm, bounds=bounds, scale=UNITS, attack=attack, budget=budget)
    assert m.distance.tolist() == pytest.approx(exact(norm, UNITS, torch.ones(4, dtype=torch.bool)), rel=1e-4)
    moved = (m.adversarial - rows).double() / UNITS.double()
    assert torch.linalg.vector_norm(
        moved, {"l1": 1, "l2": 2, "linf": torch.inf}[norm], dim=1
    ).tolist() == pytest.approx(m.distance.tolist(), rel=1e-9)
    assert (model(m.adversarial).argmax(1) != labels).all()
    assert m.settings["scale"] == [pytest.approx(0.01), 1e5]


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize(("attack", "budget"), ATTACKS)
def test_fixed_features_keep_the_value_that_each_sample_has(norm: str, attack: Any, budget: int | None) -> None:
    model, rows, labels = table()
    fixed = np.array([True, False, False, True])
    bounds = ([0, -np.inf, -np.inf, 0], np.inf)
    m = ma.measure(
        model, rows, labels, norm, bounds=bounds, scale=UNITS, fixed=fixed, attack=attack, budget=budget, batch=2
    )
    assert m.adversarial[:, fixed].equal(rows[:, fixed])
    assert m.distance.tolist() == pytest.approx(exact(norm, UNITS, torch.from_numpy(~fixed)), rel=1e-4)


OTHERS: list[Any] = [
    attacks.CarliniWagner(searches=3, steps=60, rate=0.1, initial=0.1), attacks.DeepFool(), attacks.FGSM(),
    attacks.Search(levels=3), attacks.LBFGS(), attacks.Boundary(steps=50),
]  # fmt: skip


@pytest.mark.parametrize("attack", OTHERS, ids=lambda attack: type(attack).__name__)
def test_every_attack_finds_points_with_the_fixed_features(attack: Any) -> None:
    model = smooth()
    images, labels = inputs(model, n=4)
    fixed = torch.tensor([True] + 5 * [False])
    lo, hi = torch.zeros(6), torch.ones(6)
    images[:, 1] = lo[1] = hi[1] = 0.25
    labels = model(images).argmax(1)
    m = ma.measure(model, images, labels, "l2", attack=attack, bounds=(lo, hi), fixed=fixed, scale=UNITS[0])
    assert m.adversarial[:, :2].equal(images[:, :2])
    assert m.success.sum() >= 3


def test_a_feature_whose_bounds_are_equal_stays() -> None:
    model = smooth(dtype=torch.float32)
    images, labels = inputs(model)
    images[:, 2] = 0.25
    labels = model(images).argmax(1)
    lo, hi = np.zeros(6), np.ones(6)
    lo[2] = hi[2] = 0.25
    for norm in ("l0", "l2"):
        m = ma.measure(model, images, labels, norm, bounds=(lo, hi), budget=200)
        free = ma.measure(model, images, labels, norm, budget=200)
        assert (m.adversarial[:, 2] == 0.25).all()
        assert m.success.double().mean() > 0.9
        assert (m.distance >= free.distance * 0.99).all()


@pytest.mark.parametrize("norm", ["l0", "l1", "l2", "linf"])
def test_a_scaled_box_in_float32_is_kept_and_verified_in_the_units_of_the_user(norm: str) -> None:
    scale = torch.tensor([0.3, 7.0, 1 / 3, 0.1, 11.0, 0.7])
    unit = smooth(dtype=torch.float32)
    model = nn.Sequential(_Divide(scale), unit)
    x, labels = inputs(unit)
    images = x * scale
    labels = model(images).argmax(1)
    m = ma.measure(model, images, labels, norm, bounds=(np.zeros(6), scale), scale=scale, budget=200)
    assert ((m.adversarial >= 0) & (m.adversarial <= scale)).all()
    assert (model(m.adversarial).argmax(1) != labels).equal(m.success)
    plain = ma.measure(unit, x, labels, norm, budget=200)
    close = torch.isclose(m.distance, plain.distance, rtol=1e-2)
    assert close.double().mean() >= 0.9  # the same problem up to rounding, which can lead to another local minimum
    if norm == "l0":
        assert m.distance.equal((m.adversarial != images).sum(1).double())


def test_a_classifier_carries_its_scale_and_its_fixed_features() -> None:
    model, rows, labels = table(torch.float32)
    fixed = torch.tensor([True, False, False, False])
    space: dict[str, Any] = {"bounds": (-np.inf, np.inf), "scale": UNITS, "fixed": fixed}
    m = ma.measure(model, rows, labels, budget=60, **space)
    same = ma.measure(ma.Classifier(model, **space), rows, labels, budget=60)
    assert same.adversarial.equal(m.adversarial)
    assert same.distance.equal(m.distance)


@pytest.mark.parametrize(
    ("alias", "name"),
    [("Linf", "linf"), ("inf", "linf"), (np.inf, "linf"), ("L∞", "linf"), ("L2", "l2"), (2, "l2"), (2.0, "l2"),
     ("2", "l2"), (1, "l1"), ("L_1", "l1"), (0, "l0"), (np.int64(2), "l2"), (ma.LINF, "linf")],
)  # fmt: skip
def test_norms_have_the_names_that_people_use(alias: Any, name: str) -> None:
    m = ma.measure(nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], alias, budget=10)
    assert m.norm == name


class _Divide(nn.Module):
    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x / self.scale
