"""measure(enough=ε): samples leave the batch once they are known to be nearer, the others are measured as before."""

from typing import Any

import pytest
import standins
import torch
from models import inputs, smooth
from problems import pose
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks
from marginattack.attacks.race.phases import DESCENT, PlannedPhase
from marginattack.attacks.race.scheduling import run_phase
from marginattack.core.observation import Observation, Observer

ATTACKS: dict[str, tuple[Any, int | None]] = {
    "Race": (None, 120),
    "MarginAttack": (ma.MarginAttack(moves=60, closing=6, follow=2), None),
    "MarginAttack, restarts and gain": (ma.MarginAttack(moves=60, follow=1, restarts=2, radius=0.1, gain=1e-3), None),
    "Search": (attacks.Search(levels=5), 400),
    "C&W": (attacks.CarliniWagner(searches=3, steps=40, rate=0.1, initial=0.1), None),
    "FGSM": (attacks.FGSM(), None),
    "L-BFGS": (attacks.LBFGS(), 100),
}


class Counting(nn.Module):
    """Counts the rows that reach a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        logits: Tensor = self.model(x)
        return logits


@pytest.mark.parametrize(("attack", "budget"), ATTACKS.values(), ids=ATTACKS)
def test_near_samples_stop_and_far_ones_are_measured_as_before(attack: Any, budget: int | None) -> None:
    model = smooth()
    images, labels = inputs(model, n=10)
    full_model, early_model = Counting(model), Counting(model)
    full = ma.measure(full_model, images, labels, "l2", attack=attack, budget=budget)
    enough = float(full.distance.sort().values[6]) * 1.3
    near = full.distance < enough / 1.001
    early = ma.measure(early_model, images, labels, "l2", attack=attack, budget=budget, enough=enough)
    assert (early.distance[near] <= enough).all()
    assert early.success.equal(full.success)
    assert (model(early.adversarial).argmax(1) != labels).equal(early.success)
    assert early.robust_accuracy(enough) == full.robust_accuracy(enough)
    torch.testing.assert_close(early.distance[~near], full.distance[~near], rtol=1e-6, atol=0)
    saved = (full.forwards + full.backwards) - (early.forwards + early.backwards)
    assert (saved >= 0).all()
    assert saved[near].sum() > 0
    assert not saved[~near].any()
    assert full_model.rows - early_model.rows == (full.forwards - early.forwards).sum()  # none waits in the batch


def test_race_stops_after_a_fraction_of_the_passes_where_nothing_is_robust() -> None:
    model = smooth()
    images, labels = inputs(model, n=10)
    m = ma.measure(model, images, labels, "linf", enough=0.9, budget=400)
    assert m.robust_accuracy(0.9) == 0
    assert (m.forwards + m.backwards).max() < 40
    assert "stopped at 0.9" in repr(m)


class Distances(Observer):
    """Of the queries since the first adversarial one."""

    def __init__(self) -> None:
        self.since: list[float] = []

    def record(self, query: Observation) -> None:
        if self.since or float(query.c) < 0:
            self.since.append(float(query.distance))


def test_a_descent_does_not_search_in_balls_that_are_smaller_than_what_is_enough() -> None:
    model = smooth()
    images, labels = inputs(model, n=1)
    margin = float(ma.measure(model, images, labels, "l2", budget=200).distance)
    phase = PlannedPhase("descend", DESCENT.move(ma.L2), DESCENT.numbers(40), "input")
    shortest = []
    for enough in (None, 0.97 * margin):
        seen = Distances()
        run_phase(pose(model, images, labels, budget=100, enough=enough, observer=seen), phase, ())
        shortest.append(min(seen.since) / margin)
    assert shortest[0] < 0.85
    assert 0.95 < shortest[1] < 1


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_samples_leave_captured_batches_between_blocks_of_a_plan(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = standins.install(monkeypatch)
    model = smooth(dtype=torch.float32)
    images, labels = inputs(model, n=10)
    classifier = ma.Classifier(model, precision=precision)
    full = ma.measure(classifier, images, labels, "l2", budget=240)
    enough = float(full.distance.median()) * 1.1
    captured = len(made)
    early = ma.measure(classifier, images, labels, "l2", budget=240, enough=enough)
    assert len(made) > captured
    near = full.distance < enough / 1.001
    assert near.any()
    assert (early.distance[near] <= enough).all()
    assert (early.distance[~near] >= 0.99 * enough).all()
    assert (early.forwards + early.backwards)[near].double().mean() < 0.6 * 240
    assert (early.forwards + early.backwards).max() <= 240


@pytest.mark.parametrize("enough", [0.0, -1.0, float("inf"), float("nan")])
def test_a_distance_that_is_none_is_refused(enough: float) -> None:
    with pytest.raises(ma.InputError, match=r"enough is .*: give a distance above 0"):
        ma.measure(nn.Identity(), torch.rand(1, 2), [0], enough=enough)


def test_a_randomised_model_is_refused() -> None:
    with pytest.raises(ma.InputError, match="enough does not work for a randomised model"):
        ma.measure(nn.Sequential(nn.Identity()), torch.tensor([[0.9, 0.2]]), [0], enough=0.1, randomized=True)
