"""The solver of the exact margins that the benchmark compares with: against the other one, and against every point."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import exact
import exact_oracle
from record import RECORDS, read

import marginattack as ma


def network(*hidden: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        sizes = (10, *hidden)
        layers = [layer for a, b in zip(sizes, hidden, strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(sizes[-1], 3)).eval()
        x = torch.rand(3, 10)
    with torch.no_grad():
        return model, x, model(x).argmax(1)


@pytest.mark.parametrize(("norm", "hidden"), [("linf", (6, 6)), ("l1", (8,))], ids=str)
def test_two_solvers_agree(norm: str, hidden: tuple[int, ...]) -> None:
    model, x, y = network(*hidden)
    upper = ma.measure(model, x, y, norm, budget=400)
    brackets = ma.bound(model, x, y, norm, upper=upper, method="exact")
    found = [exact_oracle.solve(model, x[k], int(y[k]), norm, 1.3 * float(upper.distance[k]), 60) for k in range(3)]
    assert all(exact for _, exact in found)
    distance = torch.tensor([each for each, _ in found], dtype=torch.float64)
    torch.testing.assert_close(distance, brackets.upper, rtol=1e-3, atol=0)
    assert (distance <= upper.distance * (1 + 1e-4)).all()


def test_a_margin_that_is_not_solved_in_time_is_said_to_be_open() -> None:
    model, x, y = network(40, 40)
    distance, exact = exact_oracle.solve(model, x[0], int(y[0]), "linf", 0.9, 0.0)
    assert not exact
    assert distance <= 0.9


def test_the_stored_margins_are_of_digits_that_the_networks_classify_correctly() -> None:
    rows = read(RECORDS / "exact-margins.json")[1]
    assert sum(row["exact"] for row in rows) >= 30
    for name in ("mlp-20", "conv-adv"):
        known = set(exact.digits(name, 40)[1].tolist())
        assert {row["digit"] for row in rows if row["network"] == name} <= known
    assert len({(row["network"], row["norm"], row["digit"]) for row in rows}) == len(rows)
