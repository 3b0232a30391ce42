"""The KKT residual: zero at nearest points of planes in every norm, the angle elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import marginattack as ma
from marginattack.bounds import kkt_residual


@pytest.fixture(scope="module")
def plane() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).requires_grad_(False)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_zero_at_the_nearest_point_in_the_box(norm: str, plane: nn.Sequential) -> None:
    x = torch.rand(6, 6)
    x[:, 0] = 0.0  # at the box
    margins = ma.measure(plane, x, plane(x).argmax(1), norm, budget=60)
    assert float(kkt_residual(plane, x, margins).max()) < 1e-3


def test_the_angle_elsewhere_and_nan_without_a_point(plane: nn.Sequential) -> None:
    x = torch.full((3, 6), 0.5)
    y = plane(x).argmax(1)
    margins = ma.measure(plane, x, y, "l2", bounds=(-9, 9))
    weight = next(plane.parameters())
    w = weight[y[0]] - weight[margins.adversarial_label[0]]
    across = torch.randn(6)
    across = across - w * (across @ w) / (w @ w)
    step = margins.adversarial[0] - x[0]
    sideways = step + across / across.norm() * step.norm()  # 45° off, along the boundary
    moved = margins.adversarial.clone()
    moved[0] = x[0] + sideways
    success = torch.tensor([True, True, False])
    residual = kkt_residual(plane, x, replace(margins, adversarial=moved, success=success), bounds=(-9, 9))
    assert float(residual[0]) == pytest.approx(1 - 2**-0.5, abs=1e-3)
    assert float(residual[1]) < 1e-3
    assert bool(residual[2].isnan())


def test_bad_input_is_refused(plane: nn.Sequential) -> None:
    x = torch.rand(2, 6)
    margins = ma.measure(plane, x, plane(x).argmax(1), "l2", budget=20)
    with pytest.raises(ma.InputError, match="margins are in l0"):
        kkt_residual(plane, x, replace(margins, norm="l0"))
    with pytest.raises(ma.InputError, match="give the images that were measured"):
        kkt_residual(plane, x, replace(margins, adversarial=torch.zeros(2, 5)))
    with pytest.raises(ma.InputError, match="bounds are given twice"):
        kkt_residual(ma.Classifier(plane), x, margins, bounds=(0, 1))
