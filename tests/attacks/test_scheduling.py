"""Races: legs side by side are those in turn, nobody pays for another, and draws belong to the sample."""

import pytest
import torch
from models import inputs, smooth
from standins import Replayed

import marginattack as ma
from marginattack.attacks import Race
from marginattack.core.classifier import Classifier
from marginattack.core.norms import NORMS, as_norm
from marginattack.core.problem import Problem
from marginattack.execution import graphs
from marginattack.execution.graphs import Graphs, Step
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

SPLIT = Race(trust=0.3)  # about half of the digits count as nearly linear


def digits(classifier: Classifier, norm: str, budget: int | None, n: int = 12) -> Problem:
    x, y, _ = classifier.accept(*(part[:n] for part in samples("mnist")))
    return Problem(classifier, x, y, as_norm(norm), budget=budget)


@pytest.mark.parametrize("attack", [Race(candidates=0), Race(polishing=0.0), Race(descending=0.0), Race(following=0.0)])
@pytest.mark.parametrize("budget", [5, 30, 100, 240])
def test_any_part_may_be_left_out(attack: Race, budget: int) -> None:
    model = smooth()
    found = ma.measure(model, *inputs(model, n=5), "l2", attack=attack, budget=budget)
    assert int((found.forwards + found.backwards).max()) <= budget
    assert budget < 30 or bool(found.success.all())


@pytest.mark.parametrize("abreast", [False, True])
def test_a_race_does_not_depend_on_who_else_is_in_the_batch(
    abreast: bool, replayed: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do its random starts, of which there is one with 620 passes; digit 18 is in another lane than the two."""
    monkeypatch.setattr(graphs, "possible", lambda points: abreast)
    images, labels = (part[17:20] for part in samples("mnist"))
    together, apart = (
        ma.measure(zoo("mnist-cnn-adv"), images, labels, "l2", budget=620, batch=batch) for batch in (3, 1)
    )
    assert bool(replayed) == abreast
    torch.testing.assert_close(together.distance, apart.distance, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("norm", "budget", "targeted"), [("l2", 60, True), ("l2", 240, True), *((norm, 700, False) for norm in NORMS)]
)
def test_targets_and_random_starts_abreast_are_those_in_turn(
    norm: str, budget: int, targeted: bool, replayed: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = smooth()
    images, labels = inputs(model, n=5)
    targets = (labels + 1) % 4 if targeted else None
    found = []
    for possible in (False, True):
        monkeypatch.setattr(graphs, "possible", lambda points, possible=possible: possible)
        found.append(ma.measure(model, images, labels, norm, targets=targets, budget=budget))
    assert replayed
    torch.testing.assert_close(found[1].distance, found[0].distance, rtol=1e-3, atol=0)
    assert found[1].forwards.equal(found[0].forwards)


def test_a_sample_with_little_left_holds_nobody_up(replayed: list[Replayed]) -> None:
    classifier = Classifier(zoo("mnist-cnn"))
    with classifier.held():
        problem = digits(classifier, "l2", 200, n=6)
        problem._left[0] = 7
        problem.solve(SPLIT)
    spent = problem.forwards + problem.backwards
    assert int(spent[0]) <= 7
    assert int(spent[1:].min()) >= 195


def test_those_who_wait_are_neither_charged_nor_credited(
    replayed: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a step cannot be captured."""
    classifier = Classifier(zoo("mnist-cnn"))
    spent = []
    with classifier.held():
        for lasting in (True, False):
            monkeypatch.setattr(Step, "lasting", lasting)
            problem = digits(classifier, "linf", 60, n=8)
            problem.solve(SPLIT)
            assert problem.anytime.passes.equal(problem.forwards + problem.backwards)
            spent.append(problem.forwards + problem.backwards)
    assert replayed
    assert spent[0].equal(spent[1])
    assert int(spent[0].max()) <= 60


def test_samples_that_are_left_out_change_nothing_for_the_others() -> None:
    classifier = Classifier(zoo("mnist-cnn-adv"))  # all are in one lane, who is left out as well
    spent = []
    with classifier.held():
        for dropped in (False, True):
            problem = digits(classifier, "l2", None, n=3)
            if dropped:
                problem.drop(torch.tensor([False, False, True]))
            problem.solve(Race(passes=220))
            spent.append((problem.forwards + problem.backwards)[:2])
    assert spent[0].equal(spent[1])
    assert int(spent[0].max()) <= 220


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("budget", [30, 60, 200])
def test_samples_abreast_find_what_they_find_in_turn(replayed: list[Replayed], norm: str, budget: int) -> None:
    classifier, attack = Classifier(zoo("mnist-cnn")), SPLIT
    found = []
    with classifier.held():
        x, y, _ = classifier.accept(*(part[:12] for part in samples("mnist")))
        for graphs_of in (Graphs("switched off"), Graphs()):
            classifier.graphs = graphs_of
            problem = Problem(classifier, x, y, as_norm(norm), budget=budget)
            linear = attack.foretold(problem)
            assert 0 < int(linear.sum()) < len(x)  # two lanes
            problem = Problem(classifier, x, y, as_norm(norm), budget=budget)
            problem.watch = (lambda *_: None) if graphs_of.why else None  # who is watched walks in turn
            problem.solve(attack)
            found.append(problem)
    assert replayed
    in_turn, abreast = found
    assert float((abreast.distance / in_turn.distance).log().abs().mean()) < 1e-3
    assert abreast.forwards.equal(in_turn.forwards)
    assert abreast.backwards.equal(in_turn.backwards)
    assert abreast.anytime.passes.equal(abreast.forwards + abreast.backwards)
