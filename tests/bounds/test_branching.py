"""Branch and bound: closes brackets in every norm, finds points that an attack missed, and never cuts one off."""

from dataclasses import replace
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from references import exact_margin
from test_bound import dense_network
from test_propagation import mlp, points_in, region_of
from torch import Tensor, nn

import marginattack as ma
from marginattack.bounds.branching import Branching, Table
from marginattack.bounds.closing import Closing
from marginattack.bounds.graph import trace
from marginattack.bounds.leaves import nearest_point
from marginattack.bounds.propagation import CROWN, Limits, OutOfTime, Propagation
from marginattack.core.norms import NORMS


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_cut_tightens_bounds_of_all_points_on_its_side(norm: str) -> None:
    model, x = mlp(6, 14, 12, 4, scale=2.0), torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    radius = {"l1": 0.6, "l2": 0.3, "linf": 0.15}[norm]
    graph, region = trace(model, x).to(torch.float64), region_of(x, norm, radius)
    g = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    k = -(g * x.double()).sum(1) + 0.02  # the input itself is beyond the cut
    points = points_in(x, norm, radius, 4000).double()
    kept = (points.view(3, -1, 6) @ g[:, :, None])[..., 0] + k[:, None] <= 0
    assert bool((kept.sum(1) > 100).all())
    with torch.no_grad():
        plain, cut = (Propagation(graph, each, CROWN) for each in (region, replace(region, cut=(g, k))))
        values = [points]
        for node in graph.nodes[1:]:
            assert node.rule is not None
            values.append(node.rule.value(*(values[i] for i in node.inputs)))
    tighter = 0
    for index in range(1, len(graph.nodes) - 1):
        low, high = (each.flatten(1)[:, None] for each in cut.bounds[index])
        seen = values[index].flatten(1).view(3, 4000, -1)
        assert bool(((seen >= low) & (seen <= high) | ~kept[..., None]).all())
        tighter += int((cut.bounds[index][0] > plain.bounds[index][0] + 1e-3).sum())
    assert tighter > 20


def test_closed_brackets_hold_the_margin_that_mixed_integer_programming_finds() -> None:
    oracle = oracles.relu_network(0, side=8, hidden=(12, 12), n=3)
    attacked = ma.measure(oracle.model, oracle.images, oracle.labels, "linf", budget=60)
    brackets = ma.bound(oracle.model, oracle.images, oracle.labels, "linf", upper=attacked, method="exact")
    exact = torch.from_numpy(oracles.milp_margins(oracle, attacked.distance.numpy()))
    assert bool(brackets.closed.all())
    assert bool((brackets.lower <= exact * (1 + 1e-6)).all())
    assert bool((brackets.upper >= exact * (1 - 1e-5)).all())


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_points_that_an_attack_missed_are_found(norm: str) -> None:
    model, x = dense_network(0, 3, 3, 2, 3), torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    exact = torch.tensor([exact_margin(model, x[i], int(y[i]), norm) for i in range(2)], dtype=torch.float64)
    brackets = ma.bound(model, x, y, norm, upper=1.3 * exact, method="exact")
    assert bool(brackets.closed.all())
    assert set(brackets.certified_by) <= {"alpha", "exact"}
    torch.testing.assert_close(brackets.upper, exact, rtol=0.0101, atol=0.0)
    assert bool((brackets.upper >= exact - 1e-6).all())
    assert bool((model(brackets.adversarial).argmax(1) != y).all())
    torch.testing.assert_close(NORMS[norm].size((brackets.adversarial - x).double())[:, 0], brackets.upper)


def test_time_that_runs_out_leaves_a_proof_at_a_smaller_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(6, 14, 12, 4, scale=2.0), torch.rand(2, 6, generator=torch.Generator().manual_seed(0))
    y, tried, branch = model(x).argmax(1), [], Closing._branch

    def only_small(self: Closing, row: int, share: float, limits: object) -> bool:
        tried.append(share)
        return share < 0.9 and branch(self, row, share, limits)  # type: ignore[arg-type]

    upper = ma.measure(model, x, y, "l2", budget=200)
    relaxed = ma.bound(model, x, y, "l2", upper=upper, method="alpha")
    assert bool((relaxed.lower < 0.85 * upper.distance).any())
    monkeypatch.setattr(Closing, "_branch", only_small)
    brackets = ma.bound(model, x, y, "l2", upper=upper, method="exact", time_limit=60.0)
    assert any(share > 0.9 for share in tried)
    assert bool((brackets.lower >= 0.88 * brackets.upper).all())
    assert not bool(brackets.closed.all())


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_nearest_points_of_polytopes(norm: str) -> None:
    rng = np.random.default_rng(0)
    a, centre = rng.standard_normal((6, 5)), rng.random(5)
    b = a @ rng.random(5) + 0.5
    point = nearest_point(a, b, centre, np.zeros(5), np.ones(5), norm)
    assert point is not None
    assert (a @ point - b).max() < 1e-4
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    others = rng.random((20000, 5))
    others = others[(others @ a.T <= b).all(1)]
    assert len(others) > 5
    assert np.linalg.norm(point - centre, order) <= np.linalg.norm(others - centre, order, axis=1).min() + 1e-4
    assert nearest_point(np.ones((1, 5)), np.array([-1.0]), centre, np.zeros(5), np.ones(5), norm) is None


def test_pools_in_l2_leave_a_bracket() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).requires_grad_(False)
    x: Tensor = torch.rand(1, 1, 5, 5)
    y = model(x).argmax(1)
    upper = ma.measure(model, x, y, "l2", budget=100)
    brackets = ma.bound(model, x, y, "l2", upper=upper, method="exact")
    assert bool((brackets.lower > 0).all())
    assert bool((brackets.lower <= upper.distance).all())


def test_a_domain_that_cannot_be_decided_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = mlp(6, 14, 12, 4, scale=2.0), torch.rand(3, 6, generator=torch.Generator().manual_seed(0))[2:]
    y, bound = model(x).argmax(1), Branching._bound
    upper = ma.measure(model, x, y, "l2", budget=100)

    def undecided(self: Branching, table: Table, steps: int) -> Table:
        left = bound(self, table, steps)
        left["node", 0] = torch.where(left["goal", 0] == 0, -1, left["node", 0])
        return left

    monkeypatch.setattr(Branching, "_bound", undecided)
    stuck = ma.bound(model, x, y, "l2", upper=upper, method="exact", tolerance=0.02)
    proven = (stuck.per_class >= 0.98 * upper.distance[:, None]).sum(1)
    assert proven.tolist() == [3]  # all classes, its own included, but the one with such a domain


def test_a_boundary_near_the_corner_of_the_box_is_found_without_an_attack() -> None:
    """What is certified beyond the first radius, but not in the whole box, is still open."""
    first, last = nn.Linear(1, 1), nn.Linear(1, 2)
    for layer, weight, bias in ((first, [[1.0]], [1.0]), (last, [[-1.0], [0.0]], [1.995, 0.0])):
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    model = nn.Sequential(first, nn.ReLU(), last)
    bracket = ma.bound(model, torch.zeros(1, 1), [0], "l2", method="exact", tolerance=0.1)
    assert 0.9 < float(bracket.lower) < 0.9951
    assert float(bracket.upper) == pytest.approx(0.995, rel=1e-3)


def test_activations_of_the_input_and_of_pools_are_split() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.LeakyReLU(0.1), nn.Conv2d(1, 2, 2), nn.MaxPool2d((1, 2), 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)
    ).requires_grad_(False)
    x = 2 * torch.rand(1, 1, 3, 3) - 1
    model[5].bias -= model(x)[0] - torch.tensor([0.05, 0.0])
    margins = ma.measure(model, x, [0], "l2", bounds=(-1, 1), budget=100)
    bracket = ma.bound(model, x, [0], "l2", upper=margins, method="exact", bounds=(-1, 1), time_limit=20.0)
    assert 0 < float(bracket.lower) <= float(bracket.upper)
    assert bracket.seconds < 20  # no domain is split at the same neuron again and again


def folded_network() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network with many linear pieces on the plane, and an input with its label."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        image = torch.rand(4, 2)[3:]
        return model, image, model(image).argmax(1)


def test_the_deadline_holds_between_the_solvers_of_linear_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def solve(*arguments: Any) -> None:
        solved.append(arguments)

    def check(limits: Limits) -> None:
        if solved:
            raise OutOfTime

    pieces = [(torch.zeros(1, 2), torch.zeros(1), torch.tensor(0)) for _ in range(3)]
    monkeypatch.setattr(Branching, "leaves", lambda search: pieces)
    monkeypatch.setattr(Closing, "_look", lambda *arguments: False)
    monkeypatch.setattr("marginattack.bounds.closing.nearest_point", solve)
    monkeypatch.setattr(Limits, "check", check)
    model, image, label = folded_network()
    bracket = ma.bound(model, image, label, "l1", method="exact", time_limit=30.0)
    assert len(solved) == 1
    assert float(bracket.lower) > 0


def test_a_point_that_closes_a_bracket_is_adversarial_beyond_rounding() -> None:
    model, image, label = folded_network()
    with torch.no_grad():
        brackets = ma.bound(model, image, label, "l1", method="exact", time_limit=30.0)
        assert brackets.closed.all()
        point = brackets.adversarial
        for logits in (model(point), model(point.expand(7, -1)), model.double()(point.double())):
            assert (logits.argmax(1) != label).all()
