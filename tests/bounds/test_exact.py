"""Exact margins of networks with pooling and leaky activations; what solvers cannot do; brackets when time is short."""

import pytest
import torch
from torch import Tensor, nn

import marginattack as ma


@pytest.fixture(scope="module")
def pooled() -> tuple[nn.Module, Tensor, Tensor]:
    """A network with padded pools, leaky activations and a shortcut, and inputs that it classifies correctly."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 2, 2), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = (x - 0.5) / 0.25
            z = nn.functional.leaky_relu(self.conv(x) + x[:, :, 1:, 1:], 0.2)
            logits: Tensor = self.head(nn.functional.max_pool2d(z, 2, 2, 1).flatten(1))
            return logits

    torch.manual_seed(1)
    model = Network().requires_grad_(False)
    model.head.weight *= 4
    x = torch.rand(2, 1, 4, 4)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_pooled_networks_are_closed_without_an_attack(norm: str, pooled: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = pooled
    x, y = x[1:], y[1:]
    attacked = ma.measure(model, x, y, norm, budget=100).distance
    alone = ma.bound(model, x, y, norm, method="exact")  # nothing is cut off: the solver finds the points itself
    assert bool((alone.lower <= attacked).all())
    assert bool(alone.closed.all())
    assert set(alone.certified_by) == {"milp"}
    assert bool((alone.upper <= attacked * (1 + 1e-4)).all())  # an attack can end in a wrong basin, a solver cannot
    for row in range(len(x)):  # the upper side is a point that the plain model confirms
        point = alone.adversarial[row, None]
        assert int(model(point).argmax()) != int(y[row])
        size = ma.core.norms.NORMS[norm].size((point.double() - x[row].double()).flatten(1))
        assert float(size) == pytest.approx(float(alone.upper[row]), rel=1e-6)
        assert bool(((point >= 0) & (point <= 1)).all())
    cut = ma.bound(model, x, y, norm, upper=attacked, method="exact")
    assert bool(cut.closed.all())
    assert bool((cut.upper <= attacked).all())
    torch.testing.assert_close(cut.lower, alone.lower, rtol=0.02, atol=0.0)  # either may stop within the tolerance


class Padded(nn.Module):
    """z and −z with z = x + max(x, 0) / 2 + 0.3, the maximum taken over a window with a constant in it."""

    def forward(self, x: Tensor) -> Tensor:
        rows = nn.functional.pad(x[:, None, None], (0, 1))
        z = x + nn.functional.max_pool2d(rows, (1, 2)).flatten(1) / 2 + 0.3
        return torch.cat([z, -z], dim=1)


def test_a_constant_can_be_the_largest_input_of_a_pool() -> None:
    brackets = ma.bound(Padded(), [[0.5]], [0], "linf", upper=torch.tensor([0.9]), method="exact", bounds=(-1, 1))
    assert float(brackets.lower) == pytest.approx(0.8, rel=1e-4)
    assert float(brackets.upper) == pytest.approx(0.8, rel=1e-4)


def test_no_time_gives_a_bracket_all_the_same(pooled: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = pooled
    brackets = ma.bound(model, x, y, "linf", upper=torch.tensor([1.0, 1.0]), method="exact", time_limit=1e-9)
    assert brackets.lower.tolist() == [0.0] * 2
    assert brackets.upper.tolist() == [1.0] * 2
    assert brackets.certified_by == ("", "")


def test_what_has_no_exact_solver_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2)).requires_grad_(False)
    x = torch.rand(1, 2)
    y = model(x).argmax(1)
    with pytest.raises(ma.InputError, match="exact margins need a piecewise linear network, without gelu"):
        ma.bound(model, x, y, "linf", method="exact")
