"""Randomised models: exact margins at a rate, stored points that hold on fresh draws, counted and repeatable draws."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from models import smooth
from randomised_models import Dropout, Linear, Noisy, ResizeAndPad, clear_inputs, make, votes
from standins import StandInGraph
from torch import Tensor, nn

import marginattack as ma

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gaussian noise": (lambda: Noisy(smooth(d=12, dtype=torch.float32), 0.1), (12,)),
    "dropout left on": (Dropout, (12,)),
    "random resizing and padding": (ResizeAndPad, (1, 8, 8)),
}
QUICK = ma.Randomized(eot=3, draws=20)


@pytest.mark.parametrize(("norm", "dual", "rate"), [("l2", 2, 0.5), ("linf", 1, 0.5), ("l1", inf, 0.8)])
def test_margins_of_a_linear_model_are_those_at_the_rate(norm: str, dual: float, rate: float) -> None:
    oracle, rule = Linear(25), ma.Randomized(rate=rate, eot=5, draws=100)
    found = ma.measure(oracle.model, oracle.x, oracle.y, norm, bounds=(-9, 9), randomized=rule, budget=300)
    assert found.success.all()
    assert (oracle.rate(found.adversarial) > rate).all()
    exact, noise = oracle.margin(rate, dual)
    excess = (found.distance - exact) / noise
    assert (excess > 0).all()
    # What 100 draws can show lies a third of the noise's standard deviation beyond the rate.
    assert float(excess.median()) < 1
    assert float(excess.max()) < 2


@pytest.mark.parametrize("name", MODELS)
def test_stored_points_hold_on_fresh_draws(name: str) -> None:
    factory, shape = MODELS[name]
    model = make(factory)
    x, y = clear_inputs(model, shape, 20)
    found = ma.measure(model, x, y, "l2", randomized=True, eot=4, budget=160)
    assert found.summary()["accuracy"] == 1
    assert found.success.double().mean() > 0.95
    wrong = 200 - votes(model, found.adversarial, 200).gather(1, y[:, None])[:, 0]
    assert (wrong > 100)[found.success].all()  # 99 % are promised


@pytest.mark.parametrize("attack", ["marginattack", "search", "deepfool", "lbfgs", "boundary"])
def test_attacks_on_a_randomised_model(attack: str) -> None:
    oracle = Linear(4)
    found = ma.measure(
        oracle.model, oracle.x, oracle.y, "l2", bounds=(-3, 4), attack=attack, randomized=QUICK, budget=90
    )
    assert (oracle.rate(found.adversarial) > 0.5)[found.success].all()
    assert (found.forwards + found.backwards <= 90).all()
    assert found.success.any()


def test_targeted_points_reach_their_target_at_the_rate() -> None:
    model = make(lambda: Noisy(smooth(d=12, dtype=torch.float32), 0.1))
    x, y = clear_inputs(model, (12,), 8)
    targets = (y + 1) % 4
    found = ma.measure(model, x, y, "l2", targets=targets, randomized=QUICK, budget=200)
    assert found.success.any()
    assert found.adversarial_label[found.success].equal(targets[found.success])
    hits = votes(model, found.adversarial, 200).gather(1, targets[:, None])[:, 0]
    assert (hits > 90)[found.success].all()  # of 200: the promise is for 20


def test_inputs_close_to_the_rate_are_measured() -> None:
    """A search finds lucky points next to them, in any direction: the tangent plane at the input rescues these."""
    oracle = Linear(1)
    x = 0.5 + torch.linspace(-0.2, 0.2, 16)[:, None] * oracle.sigma * oracle.w / oracle.w.norm()
    oracle.y = torch.zeros(16, dtype=torch.int64)
    rule = ma.Randomized(eot=2, draws=50)  # two draws: luck is common
    found = ma.measure(oracle.model, x, oracle.y, "l2", bounds=(-9, 9), randomized=rule, budget=200)
    assert found.success.sum() >= 15  # 50 draws may reject a point whose rate is hardly above a half
    assert (oracle.rate(found.adversarial)[found.success] > 0.5).all()
    assert (found.distance[found.success] < 3 * oracle.sigma).all()  # measured: up to 2.6 over six seeds


def test_accuracy_is_that_at_the_rate() -> None:
    """Inputs at known rates of misclassification: only those that are shown to exceed the rate have distance 0."""
    oracle = Linear(1)
    steps = torch.linspace(-1.5, 1.5, 13)[:, None] * oracle.sigma * oracle.w / oracle.w.norm()
    x, y = 0.5 + steps, torch.zeros(13, dtype=torch.int64)
    oracle.y = y
    rate = oracle.rate(x)
    found = ma.measure(oracle.model, x, y, "l2", bounds=(-9, 9), randomized=True, eot=5, budget=300)
    zero = found.distance == 0
    assert zero[rate > 0.75].all()
    assert not zero[rate < 0.55].any()
    assert (found.prediction == y).equal(~zero)
    assert found.success.all()
    assert (found.distance[~zero] > 0).all()


class Counting(Noisy):
    """Counts passes of a single sample: forwards with gradients, and backwards."""

    forwards = backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if logits.requires_grad:
            self.forwards += len(x)
            logits.register_hook(self._count)
        return logits

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def test_every_draw_is_a_counted_pass() -> None:
    oracle = Linear(3)
    model = Counting(oracle.model.model, oracle.sigma)
    attack = ma.attacks.PGD(eps=3.0, steps=20)
    options: dict[str, Any] = {"randomized": True, "eot": 7, "budget": 150, "diagnose": False}
    found = ma.measure(model, oracle.x, oracle.y, "l2", bounds=(-9, 9), attack=attack, **options)
    assert model.backwards == int(found.backwards.sum()) > 0
    probed = 3 * 7  # draws for the inputs whose memory is measured, one and two
    assert model.forwards - probed <= int(found.forwards.sum())
    assert (found.forwards + found.backwards <= 150).all()
    assert (found.forwards % 7 == 0).all()


def test_draws_are_those_of_the_seed_and_the_callers_are_left_alone() -> None:
    oracle = Linear(6)

    def measure(rows: list[int], seed: int, batch: int) -> Tensor:
        found = ma.measure(
            oracle.model, oracle.x[rows], oracle.y[rows], "l2", bounds=(-9, 9), seed=seed, ids=rows, batch=batch,
            randomized=QUICK, budget=60,
        )  # fmt: skip
        return found.distance

    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = measure([0, 1, 2, 3], 0, 256)
    assert torch.get_rng_state().equal(state)
    torch.manual_seed(4)
    assert measure([0, 1, 2, 3], 0, 256).equal(first)
    assert not measure([0, 1, 2, 3], 1, 256).equal(first)
    alone = measure([0, 1, 2, 3], 0, 1)
    assert measure([3, 1], 0, 1).equal(alone[[3, 1]])


def test_the_result_says_so() -> None:
    oracle, rule = Linear(2), ma.Randomized(eot=3, rate=0.6, confidence=0.95, draws=100)
    found = ma.measure(oracle.model, oracle.x, oracle.y, "l2", bounds=(-9, 9), randomized=rule, budget=60)
    assert found.settings["randomized"] == {"eot": 3, "rate": 0.6, "confidence": 0.95, "draws": 100}
    assert repr(found).endswith(", randomized)")


def test_a_randomised_model_is_not_captured(graphs_made: list[StandInGraph]) -> None:
    oracle = Linear(4)
    ma.measure(oracle.model, oracle.x, oracle.y, "l2", bounds=(-9, 9), randomized=QUICK, budget=200)
    assert not graphs_made
    ma.measure(oracle.model.model, oracle.x, oracle.y, "l2", bounds=(-9, 9), budget=200)
    assert graphs_made


def normalised() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(12, track_running_stats=False), nn.Linear(12, 2))


REFUSED: dict[str, dict[str, Any]] = {
    "eot is 5, but": {"eot": 5},
    "budget is 39, but two gradients of 10 draws take 40 passes": {"randomized": True, "budget": 39},
    "precision='bf16' may change the draws of a randomised model": {"randomized": True, "precision": "bf16"},
    "0 normalises over the batch: use BatchNorm with": {"randomized": True, "model": normalised()},
    "randomized is given twice": {"randomized": True, "model": ma.Classifier(nn.Linear(12, 2))},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_sense_is_refused(message: str) -> None:
    oracle = Linear(2)
    given: dict[str, Any] = {"model": oracle.model, **REFUSED[message]}
    with pytest.raises(ma.InputError, match=message):
        ma.measure(images=oracle.x, labels=oracle.y, **given)
