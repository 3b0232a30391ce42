"""What was known when: the best distance against the passes spent, and the trace of an attack."""

from dataclasses import replace

import pytest
import torch
from models import inputs, smooth

import marginattack as ma
from marginattack.attacks import ATTACKS
from marginattack.core.history import GRID, RATIO, Anytime
from marginattack.core.norms import L2
from marginattack.runs.trace import trace

INF = torch.inf


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_the_curve_falls_when_something_nearer_is_seen_and_never_rises() -> None:
    record = Anytime(2, torch.zeros(2, 3))
    rows = torch.arange(2)
    record.see(rows, torch.tensor([2, 2]), column(INF, 5.0))
    record.see(rows, torch.tensor([2, 2]), column(3.0, 7.0))
    record.see(rows[:1], torch.tensor([96]), column(1.0))
    assert record.passes.tolist() == [100, 4]
    assert record.best.tolist() == [1.0, 5.0]
    at = {passes: record.curve[:, int((passes - 1e-6 > GRID).sum())].tolist() for passes in (1, 2, 4, 50, 100)}
    assert at == {1: [INF, INF], 2: [INF, 5.0], 4: [3.0, 5.0], 50: [3.0, 5.0], 100: [1.0, 5.0]}


def test_attempts_side_by_side_share_passes_and_the_best() -> None:
    record = Anytime(2, torch.zeros(2, 3))
    record.see(torch.tensor([1, 1, 0]), torch.tensor([2, 2, 2]), column(4.0, 2.0, 9.0))
    assert record.passes.tolist() == [2, 4]
    assert record.best.tolist() == [9.0, 2.0]


@pytest.mark.parametrize("passes", [1, 10, 100, 1000])
def test_a_share_of_the_passes_is_met_within_the_grid(passes: int) -> None:
    record = Anytime(1, torch.zeros(1, 3))
    for k in range(passes):
        record.see(torch.tensor([0]), torch.tensor([1]), column(1.0 / (k + 1)))
    known = 1.0 / record.at(0.9)[0]  # how many passes were spent by then
    assert max(1.0, 0.9 * passes / RATIO - 1) <= known <= max(1.0, 0.9 * passes)


def test_an_attacks_passes_and_best_are_the_problems() -> None:
    model = smooth()
    images, labels = inputs(model)
    for name in ("marginattack", "deepfool", "cw"):
        attack = ATTACKS[name]()
        classifier = ma.Classifier(model)
        classifier.accept(images, labels)
        problem = ma.Problem(classifier, images, labels, L2, budget=60)
        problem.solve(attack)
        assert problem.anytime.passes.equal(problem.forwards + problem.backwards), name
        assert problem.anytime.best.equal(problem.distance[:, 0]), name
        assert problem.anytime.curve[:, -1].equal(problem.distance[:, 0]), name


def test_late_is_what_fewer_passes_had_found() -> None:
    model = smooth()
    images, labels = inputs(model)
    full = ma.measure(model, images, labels, attack=ma.MarginAttack(moves=6, closing=2, follow=0, scans=0))
    assert (full.distance_at_90pct >= full.distance).all()
    assert (full.distance_at_90pct > full.distance).any()
    wrong = ma.measure(model, images, (labels + 1) % 4, attack=ma.MarginAttack(moves=40))
    assert (wrong.distance_at_90pct == 0).all()


def test_a_trace_has_a_row_a_look_with_the_move_that_led_there() -> None:
    model = smooth()
    images, labels = inputs(model, n=3)
    attack = ma.MarginAttack(moves=10, closing=2, follow=0, scans=0, rescue=0)
    classifier = ma.Classifier(model)
    with classifier.held():
        x, y, _ = classifier.accept(images, labels)
        rows = trace(classifier, x, y, L2, attack, ids=torch.tensor([5, 6, 7]))
        alone = trace(classifier, x[:1], y[:1], L2, replace(attack, moves=10), ids=torch.tensor([5]))
    of_first = [k for k, number in enumerate(rows["id"]) if number == 5]
    moves = [rows["move"][k] for k in of_first]
    assert moves == ["", *["restoration", "projection"] * 4, *["closing"] * 2][: len(moves)]
    assert len(moves) == 11
    assert [rows["look"][k] for k in of_first] == list(range(11))
    assert [rows["passes"][k] for k in of_first] == [*range(2, 21, 2), 21]
    assert rows["distance"][of_first[0]] == 0
    assert [rows["distance"][k] for k in of_first] == pytest.approx(alone["distance"])
    best = [rows["best"][k] for k in of_first]
    assert best == sorted(best, reverse=True)
