"""MarginAttack against classifiers whose margins are known."""

import numpy as np
import oracles
import pytest
import torch

import marginattack as ma

NORMS = ["l1", "l2", "linf"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("boxed", [False, True])
def test_linear_margins_are_exact_on_a_thousand_instances(norm: str, boxed: bool) -> None:
    attack = ma.MarginAttack(moves=60, closing=20, scans=3)
    instances = 0
    for seed in range(10):
        oracle = oracles.linear(seed, boxed=boxed, dtype=torch.float32)
        found = ma.measure(oracle.model, oracle.images, oracle.labels, norm, attack=attack, bounds=oracle.bounds)
        exact = oracle.exact(norm)
        assert np.isfinite(exact).all()
        np.testing.assert_allclose(found.distance.numpy(), exact, rtol=1e-4, atol=2**-23)  # pixels are in float32
        instances += len(exact)
    assert instances >= 1000


@pytest.mark.parametrize("bend", [-0.6, 0.5, 3.0])
def test_paraboloids_are_reached(bend: float) -> None:
    oracle = oracles.paraboloid(0, bend)
    found = ma.measure(oracle.model, oracle.images, oracle.labels, "l2", bounds=oracle.bounds).distance.numpy()
    np.testing.assert_allclose(found, oracle.exact("l2"), rtol=1e-3)


def test_relu_networks_come_within_half_a_percent_of_exact_and_never_below() -> None:
    excess = []
    for seed, (side, hidden) in enumerate([(5, (20, 20)), (7, (20, 20))], start=1):
        oracle = oracles.relu_network(seed, side=side, hidden=hidden)
        found = ma.measure(oracle.model, oracle.images, oracle.labels, "linf", budget=2000).distance.numpy()
        exact = oracles.milp_margins(oracle, found)  # infinite where the margin that was found is too small to be true
        assert (found >= exact - 2e-6).all()  # HiGHS ends within 1e-6 of the optimum
        excess.append(found[np.isfinite(exact)] / exact[np.isfinite(exact)] - 1)
    every = np.concatenate(excess)
    assert len(every) >= 16
    assert every.mean() <= 0.005, f"mean excess {every.mean():.2%}"
    assert (every <= 1e-3).mean() >= 0.7
