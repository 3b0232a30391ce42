"""Captured queries and steps: the bookkeeping with stand-ins for graphs, and real graphs on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from models import inputs, smooth
from problems import validated
from standins import StandInGraph
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import ATTACKS, Attack, MarginAttack, Race
from marginattack.attacks.marginattack import TangentProjection
from marginattack.attacks.race import scheduling
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.problem import Problem, Step
from marginattack.core.schedules import Constant, Power
from marginattack.execution import captured as captures
from marginattack.execution import graphs
from marginattack.execution.session import Session, open_session

# Hops that end a little past the boundary: for those that end on it, rounding decides which query finds them.
TWICE = MarginAttack(restarts=2, radius=0.1, offset=Constant(-1e-6))
EARLY = MarginAttack(
    follow=0, scans=0, moves=44, closing=4, beta=Power(0.5), gain=1e-8
)  # samples finish one after the other

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs exist nowhere else")


def solve(attack: Attack, norm: str, *, captured: bool, budget: int = 90, n: int = 11) -> tuple[Problem, Session]:
    """A problem after an attack, on a GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with validated(Classifier(smooth().to(device), graphs=captured), *inputs(smooth(), n=n)) as (session, batch):
        problem = session.problem(batch, as_norm(norm), budget=budget)
        problem.solve(attack)
    return problem, session


def check_same(found: Problem, expected: Problem) -> None:
    """The same incumbents after the same passes."""
    torch.testing.assert_close(found.incumbent.distance, expected.incumbent.distance, rtol=1e-5, atol=0)
    assert found.budget.forwards.equal(expected.budget.forwards)
    assert found.budget.backwards.equal(expected.budget.backwards)
    history, other = found.incumbent.history, expected.incumbent.history
    assert history.passes.equal(other.passes)
    torch.testing.assert_close(history.curve, other.curve, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("norm", "n"), [("l1", 16), ("l2", 16), ("linf", 16), ("l2", 11)])
@pytest.mark.parametrize("attack", [Race(), MarginAttack(), TWICE, EARLY])
def test_captured_steps_are_the_eager_ones(graphs_made: list[StandInGraph], attack: Attack, norm: str, n: int) -> None:
    eager, _ = solve(attack, norm, captured=False, n=n)
    assert not graphs_made
    captured, session = solve(attack, norm, captured=True, n=n)
    assert graphs_made
    assert not session.graphs.why_not
    check_same(captured, eager)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("race", "marginattack")])
def test_captured_queries_are_the_eager_ones(graphs_made: list[StandInGraph], name: str) -> None:
    if name == "boundary":
        pytest.importorskip("foolbox")
    attack = ATTACKS[name](**({"eps": 0.3} if hasattr(ATTACKS[name], "eps") else {}))
    eager, captured = (solve(attack, attack.norms[0], captured=each)[0] for each in (False, True))
    check_same(captured, eager)


def test_batches_of_similar_size_share_graphs(graphs_made: list[StandInGraph]) -> None:
    images, labels = inputs(smooth(dtype=torch.float32), n=64)
    made = []
    with open_session(Classifier(smooth(dtype=torch.float32))) as session:
        for n in (16, 15, 14, 13) * 4:  # other inputs, with about the same batch noise
            batch = session.validate(images[n : 2 * n], labels[n : 2 * n])
            session.problem(batch, as_norm("l2"), budget=60).solve(MarginAttack())
            made.append(len(graphs_made))
    assert made[-1] <= 4 * made[0]  # of two tolerances, two steps and two kinds of queries; not 16 times as many
    assert made[-2] == made[-1]
    sizes = (1, 3, 8, 9, 100, 500, 512, 513, 1000)
    assert [graphs.graph_rows(n) for n in sizes] == [1, 4, 8, 16, 104, 512, 512, 544, 1024]
    assert all(n <= graphs.graph_rows(n) <= max(8, 1.07 * n + 8) for n in range(1, 5000))


@dataclass(frozen=True)
class Descend(Step):
    """A step down the gradient."""

    queries: ClassVar = 1

    def __call__(self, problem: Problem, numbers: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        _, g = problem.value_and_gradient(state[0])
        return (problem.box.clamp(state[0] - numbers[:, :1] * problem.norm.steepest(g)),)


@pytest.mark.parametrize(
    ("plans", "captured"), [([1], 0), ([2], 0), ([3], 1), ([1, 1], 0), ([1, 1, 1], 1), ([2, 9], 1)]
)
def test_steps_that_are_not_replayed_are_not_captured(
    graphs_made: list[StandInGraph], plans: list[int], captured: int
) -> None:
    problems = []
    for graphs_allowed in (False, True):
        with validated(Classifier(smooth(), graphs=graphs_allowed), *inputs(smooth(), n=8)) as (session, batch):
            problem = session.problem(batch, as_norm("l2"))
            x = problem.x0
            for rows in plans:
                (x,) = problem.run(Descend(), [[0.2]] * rows, x)
        problems.append(problem)
    assert len([graph for graph in graphs_made if graph.function.__name__ == "advance"]) == captured
    check_same(*problems)


def test_what_was_captured_before_changes_nothing(graphs_made: list[StandInGraph]) -> None:
    with validated(Classifier(smooth()), *inputs(smooth(), n=11)) as (session, batch):
        first, again = (session.problem(batch, as_norm("l2"), budget=60) for _ in range(2))
        first.solve(Race())
        again.solve(Race())
        assert session.configure(precision="bf16").graphs is session.graphs
        assert session.configure(graphs=False).graphs.why_not == "switched off"
    assert first.incumbent.distance.equal(again.incumbent.distance)
    assert first.incumbent.points.equal(again.incumbent.points)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_in_a_capture_halves_the_batch(
    graphs_made: list[StandInGraph], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    capture, failed, sizes = captures.capture, [], []  # type: ignore[var-annotated]

    def fail_once(function: Callable[[], Any], *rest: Any) -> Any:
        if not failed:
            failed.append(1)
            raise error("no memory")
        return capture(function, *rest)

    monkeypatch.setattr(captures, "capture", fail_once)
    found = ma.measure(smooth(), *inputs(smooth(), n=16), "l2", budget=100, batch=16, progress=sizes.append)
    assert sizes == [8, 8]
    assert graphs_made
    assert found.success.all()


class Deactivating:
    """A projection with a state, so not a value: it deactivates every other sample after three moves."""

    def __init__(self) -> None:
        self.betas: list[float] = []

    def __call__(self, problem: Problem, z: Tensor, g: Tensor, beta: float | Tensor) -> Tensor:
        self.betas.append(float(beta))
        if len(self.betas) == 3:
            problem.budget.deactivate(torch.arange(len(z)) % 2 == 0)
        return z


def test_a_step_with_a_state_is_run_eagerly_and_may_deactivate_samples(graphs_made: list[StandInGraph]) -> None:
    projection = Deactivating()
    problem, session = solve(MarginAttack(follow=0, scans=0, rescue=0, projection=projection), "l2", captured=True)
    assert not session.graphs.why_not
    assert len(set(projection.betas)) == len(projection.betas) > 10  # once for each pair of moves
    spent = problem.budget.forwards + problem.budget.backwards
    assert spent[::2].max() < 20 < 80 < spent[1::2].min()  # out of 90


def test_a_step_of_another_class_is_run_eagerly(graphs_made: list[StandInGraph]) -> None:
    class Own(TangentProjection):
        pass

    own, session = solve(MarginAttack(projection=Own()), "l2", captured=True)
    slide, _ = solve(MarginAttack(projection=TangentProjection()), "l2", captured=True)
    assert not session.graphs.why_not
    assert own.incumbent.distance.equal(slide.incumbent.distance)


def test_a_model_that_cannot_be_captured_is_run_eagerly(
    graphs_made: list[StandInGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captures, "capture", fail)
    eager, _ = solve(Race(), "l2", captured=False)
    captured, session = solve(Race(), "l2", captured=True)
    assert "operation not permitted" in session.graphs.why_not
    assert captured.incumbent.distance.equal(eager.incumbent.distance)
    assert captured.budget.forwards.equal(eager.budget.forwards)


def test_a_graph_with_other_answers_is_not_used(
    graphs_made: list[StandInGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(StandInGraph):
        def replay(self) -> None:
            super().replay()
            super().replay()  # a step too many

    monkeypatch.setattr(captures, "capture", lambda function, *_: (Wrong(function), None))
    eager, _ = solve(MarginAttack(), "l2", captured=False)
    captured, session = solve(MarginAttack(), "l2", captured=True)
    assert session.graphs.why_not == "a captured pass answers otherwise than an eager one"
    assert captured.incumbent.distance.equal(eager.incumbent.distance)


class Synchronizing(nn.Module):
    """A model that waits for the GPU in the middle of its forward, which cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.model = smooth()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits if float(images.detach().sum()) > -1e9 else 2 * logits


@on_a_gpu
@pytest.mark.parametrize("norm", ["l0", "l1", "l2", "linf"])
@pytest.mark.parametrize("attack", [Race(), MarginAttack()])
def test_on_a_gpu_graphs_find_what_eager_execution_finds(attack: Attack, norm: str) -> None:
    eager, _ = solve(attack, norm, captured=False, n=40)
    captured, session = solve(attack, norm, captured=True, n=40)
    assert not session.graphs.why_not
    assert float((captured.incumbent.distance / eager.incumbent.distance).log().abs().mean()) < 1e-3
    assert captured.budget.forwards.equal(eager.budget.forwards)


@on_a_gpu
def test_on_a_gpu_a_model_that_synchronizes_is_run_eagerly() -> None:
    found, expected = (
        ma.measure(Classifier(Synchronizing().cuda(), graphs=graphs), *inputs(smooth(), n=12), "l2", budget=100)
        for graphs in (True, False)
    )
    assert "the model cannot be captured" in found.settings["graphs"]
    assert expected.settings["graphs"] == "switched off"
    torch.testing.assert_close(found.distance, expected.distance, rtol=1e-5, atol=0)


@on_a_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(("attack", "where"), [(MarginAttack(), "steps"), (Race(), "steps"), (Race(), "interleaving")])
@pytest.mark.parametrize("captured", [False, True])
def test_no_step_waits_for_the_gpu(attack: Attack, where: str, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: Any = graphs.Graphs if captured else graphs
    name = "run" if captured else "run_eager"
    if where == "interleaving":
        owner, name = scheduling, "run_interleaved"
    run = getattr(owner, name)
    calls = []

    def run_without_waiting(*arguments: Any) -> Any:
        calls.append(1)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return run(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    with validated(Classifier(smooth().cuda(), graphs=captured), *inputs(smooth(), n=40)) as (session, batch):
        session.problem(batch, as_norm("l2"), budget=200).solve(attack)  # captures, which compares and waits
        monkeypatch.setattr(owner, name, run_without_waiting)
        session.problem(batch, as_norm("l2"), budget=200).solve(attack)
    assert calls
