"""Captured looks and steps: the bookkeeping around a graph with a stand-in for it, and real graphs on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import inputs, smooth
from standins import Replayed
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import ATTACKS, Attack, MarginAttack, Race, legs
from marginattack.attacks.marginattack import Slide
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.problem import Problem
from marginattack.core.schedules import Constant, Power
from marginattack.execution import graphs

# Hops that end a little past the boundary: of those that end on it, rounding decides which look finds them.
TWICE = MarginAttack(restarts=2, radius=0.1, offset=Constant(-1e-6))
EARLY = MarginAttack(follow=0, scans=0, moves=44, closing=4, beta=Power(0.5), gain=1e-8)  # samples leave it in turn

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs exist nowhere else")


def solved(attack: Attack, norm: str, *, captured: bool, budget: int = 90, n: int = 11) -> tuple[Problem, Classifier]:
    """A problem after an attack, on a GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classifier = Classifier(smooth().to(device), graphs=captured)
    with classifier.held():
        x, y, _ = classifier.accept(*inputs(smooth(), n=n))
        problem = Problem(classifier, x, y, as_norm(norm), budget=budget)
        problem.solve(attack)
    return problem, classifier


@pytest.mark.parametrize(("norm", "n"), [("l1", 16), ("l2", 16), ("linf", 16), ("l2", 11)])
@pytest.mark.parametrize("attack", [Race(), MarginAttack(), TWICE, EARLY])
def test_captured_steps_are_the_plain_ones(replayed: list[Replayed], attack: Attack, norm: str, n: int) -> None:
    plain, _ = solved(attack, norm, captured=False, n=n)
    assert not replayed
    captured, classifier = solved(attack, norm, captured=True, n=n)
    assert replayed
    assert not classifier.graphs.why
    torch.testing.assert_close(captured.distance, plain.distance, rtol=1e-5, atol=0)
    for name in ("forwards", "backwards"):
        assert getattr(captured, name).equal(getattr(plain, name)), name
    assert captured.anytime.passes.equal(plain.anytime.passes)
    torch.testing.assert_close(captured.anytime.curve, plain.anytime.curve, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("race", "marginattack")])
def test_captured_looks_are_the_plain_ones(replayed: list[Replayed], name: str) -> None:
    attack = ATTACKS[name]()
    norm = attack.norms[0]
    plain, _ = solved(attack, norm, captured=False)
    captured, _ = solved(attack, norm, captured=True)
    torch.testing.assert_close(captured.distance, plain.distance, rtol=1e-5, atol=0)
    assert captured.forwards.equal(plain.forwards)


def test_batches_of_about_the_same_size_share_graphs(replayed: list[Replayed]) -> None:
    images, labels = inputs(smooth(dtype=torch.float32), n=64)
    classifier = Classifier(smooth(dtype=torch.float32))
    made = []
    with classifier.held():
        for n in (16, 15, 14, 13) * 4:  # of other inputs, which company changes about as much
            x, y, _ = classifier.accept(images[n : 2 * n], labels[n : 2 * n])
            classifier.meet(x, classifier.answers(x))
            Problem(classifier, x, y, as_norm("l2"), budget=60).solve(MarginAttack())
            made.append(len(replayed))
    assert made[-1] <= 4 * made[0]  # of two companies, two steps and two kinds of looks; not 16 times as many
    assert made[-2] == made[-1]
    assert [graphs.friendly(n) for n in (1, 8, 9, 100, 500, 512, 513, 1000)] == [8, 8, 16, 104, 512, 512, 544, 1024]
    assert all(n <= graphs.friendly(n) <= max(8, 1.07 * n + 8) for n in range(1, 5000))


def test_what_was_measured_before_changes_nothing(replayed: list[Replayed]) -> None:
    images, labels = inputs(smooth(), n=40)
    alone = Classifier(smooth())
    with alone.held():
        x, y, _ = alone.accept(images[:11], labels[:11])
        first = Problem(alone, x, y, as_norm("l2"), budget=60)
        first.solve(Race())
        again = Problem(alone, x, y, as_norm("l2"), budget=60)
        again.solve(Race())
    assert first.distance.equal(again.distance)
    assert first.best.equal(again.best)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_memory_that_runs_out_in_a_capture_halves_the_batch(
    replayed: list[Replayed], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    captured = graphs._captured

    def tight(function: Callable[[], Any], *rest: Any) -> Any:
        if len(held) < 1:
            held.append(1)
            raise error("no memory")
        return captured(function, *rest)

    held: list[int] = []
    monkeypatch.setattr(graphs, "_captured", tight)
    images, labels = inputs(smooth(), n=16)
    classifier = Classifier(smooth())
    found = ma.measure(classifier, images, labels, "l2", budget=100, batch=16)
    assert classifier.chunk == 8
    assert not classifier.graphs.why
    assert found.success.all()


def test_a_step_that_remembers_is_made_plainly(replayed: list[Replayed]) -> None:
    remembering = Remembering([])
    problem, classifier = solved(MarginAttack(follow=0, scans=0, projection=remembering), "l2", captured=True)
    assert torch.isfinite(problem.distance).all()
    assert not classifier.graphs.why
    assert len(set(remembering.seen)) == len(remembering.seen) > 10  # once for each pair of moves


def test_a_step_that_remembers_may_leave_samples_out(replayed: list[Replayed]) -> None:
    leaving = MarginAttack(follow=0, scans=0, rescue=0, projection=Leaving(3))
    problem, _ = solved(leaving, "l2", captured=True)
    spent = problem.forwards + problem.backwards
    assert spent[::2].max() < 20 < 80 < spent[1::2].min()  # out of 90, after three moves


class Leaving:
    """A projection that leaves every other sample out from a move on."""

    def __init__(self, moves: int) -> None:
        self.moves, self.made = moves, 0

    def __call__(self, problem: Problem, z: Tensor, g: Tensor, beta: float | Tensor) -> Tensor:
        self.made += 1
        if self.made == self.moves:
            problem.drop(torch.arange(len(z)) % 2 == 0)
        return z


def test_a_step_of_a_class_of_ones_own_is_made_plainly(replayed: list[Replayed]) -> None:
    class Own(Slide):
        pass

    problem, classifier = solved(MarginAttack(projection=Own()), "l2", captured=True)
    slid, _ = solved(MarginAttack(projection=Slide()), "l2", captured=True)
    assert not classifier.graphs.why
    assert problem.distance.equal(slid.distance)


class Remembering:
    """A projection with a memory: no value."""

    def __init__(self, seen: list[float]) -> None:
        self.seen = seen

    def __call__(self, problem: Problem, z: Tensor, g: Tensor, beta: float | Tensor) -> Tensor:
        self.seen.append(float(beta))
        return z


def test_a_model_that_cannot_be_captured_is_measured_plainly(
    replayed: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "_captured", refuses)
    plain, _ = solved(Race(), "l2", captured=False)
    captured, classifier = solved(Race(), "l2", captured=True)
    assert "operation not permitted" in classifier.graphs.why
    assert captured.distance.equal(plain.distance)
    assert captured.forwards.equal(plain.forwards)


def test_a_graph_that_answers_otherwise_is_not_used(replayed: list[Replayed], monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Replayed):
        def replay(self) -> None:
            super().replay()
            super().replay()  # a step too many

    monkeypatch.setattr(graphs, "_captured", lambda function, *_: (Wrong(function), None))
    plain, _ = solved(MarginAttack(), "l2", captured=False)
    captured, classifier = solved(MarginAttack(), "l2", captured=True)
    assert classifier.graphs.why == "a captured pass answers otherwise than a plain one"
    assert captured.distance.equal(plain.distance)


class Asking(nn.Module):
    """A model that asks the host in the middle of its forward, which a graph cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smooth()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits if float(images.detach().sum()) > -1e9 else 2 * logits


@on_a_gpu
@pytest.mark.parametrize("norm", ["l0", "l1", "l2", "linf"])
@pytest.mark.parametrize("attack", [Race(), MarginAttack()])
def test_on_a_gpu_graphs_find_what_plain_execution_finds(attack: Attack, norm: str) -> None:
    plain, _ = solved(attack, norm, captured=False, n=40)
    captured, classifier = solved(attack, norm, captured=True, n=40)
    assert not classifier.graphs.why
    assert float((captured.distance / plain.distance).log().abs().mean()) < 1e-3
    assert captured.forwards.equal(plain.forwards)


@on_a_gpu
def test_on_a_gpu_a_model_that_asks_the_host_is_measured_plainly() -> None:
    images, labels = inputs(smooth(), n=12)
    classifier = Classifier(Asking().cuda())
    found = ma.measure(classifier, images, labels, "l2", budget=100)
    assert "no graph of it can be captured" in classifier.graphs.why
    expected = ma.measure(Classifier(Asking().cuda(), graphs=False), images, labels, "l2", budget=100)
    torch.testing.assert_close(found.distance, expected.distance, rtol=1e-5, atol=0)


@on_a_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(("attack", "where"), [(MarginAttack(), "walk"), (Race(), "walk"), (Race(), "legs")])
@pytest.mark.parametrize("captured", [False, True])
def test_on_a_gpu_no_walk_waits_for_it(
    attack: Attack, where: str, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Any = graphs.Graphs if captured else graphs
    name = "walk" if captured else "plainly"
    if where == "legs":
        place, name = legs, "abreast"
    walk = getattr(place, name)
    walks = []

    def strictly(*arguments: Any) -> Any:
        walks.append(1)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return walk(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    classifier = Classifier(smooth().cuda(), graphs=captured)
    with classifier.held():
        x, y, _ = classifier.accept(*inputs(smooth(), n=40))
        Problem(classifier, x, y, as_norm("l2"), budget=200).solve(attack)  # captures, which compares and waits
        monkeypatch.setattr(place, name, strictly)
        Problem(classifier, x, y, as_norm("l2"), budget=200).solve(attack)
    assert walks
