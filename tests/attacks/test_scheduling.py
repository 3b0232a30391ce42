"""How Race runs its phases: interleaved as in sequence, as planned, and independent of the batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from models import After, Function, inputs, smooth
from problems import pose, validated
from standins import StandInGraph
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import Race
from marginattack.attacks.race import CURVED, NEAR_LINEAR, scheduling
from marginattack.attacks.race.phases import MASKED, PASSES_PER_START, SHORT, PlannedPhase, Profile, plan_all
from marginattack.attacks.race.scheduling import run_interleaved, run_sequential
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.problem import Problem
from marginattack.execution import graphs
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

BOTH_PROFILES = Race(trust=0.3)  # about half of the digits are near-linear
ALL_CURVED, ALL_NEAR_LINEAR = Race(trust=0.0, masked=CURVED), Race(trust=1e9)


def spent(problem: Problem) -> Tensor:
    return problem.budget.forwards + problem.budget.backwards


@pytest.fixture
def phases_run(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None, int]]:
    """Name and target of each phase that is run in sequence, and the passes that its samples spend."""
    run_phase, phases = scheduling.run_phase, []  # type: ignore[var-annotated]

    def note(problem: Problem, phase: PlannedPhase, classes: Sequence[Tensor]) -> None:
        before = spent(problem)
        try:
            run_phase(problem, phase, classes)
        finally:
            passes = (spent(problem) - before)[problem.budget.active].unique().tolist()
            phases.extend((phase.name, phase.target, each) for each in passes)

    monkeypatch.setattr(scheduling, "run_phase", note)
    return phases


def with_unreachable_class(n: int) -> tuple[nn.Module, Tensor, Tensor, list[Tensor]]:
    """A model whose last class is never predicted, a batch, and two classes to follow: for every other sample it."""
    model = After(smooth(), lambda z: nn.functional.pad(z, (0, 1), value=-100.0))
    images, labels = inputs(model, n=n)
    with torch.no_grad():
        second, third = model(images).topk(3, dim=1).indices.T[1:]
    unreachable = torch.arange(n) % 2 == 0
    return model, images, labels, [torch.where(unreachable, 4, each) for each in (second, third)]


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize(
    ("norm", "budget"), [("l2", 60), ("linf", 60), ("l0", 199), ("l1", 199), ("linf", 240), ("l1", 700), ("l2", 1300)]
)
def test_interleaved_phases_find_and_spend_what_sequential_ones_do(
    norm: str, budget: int, targeted: bool, graphs_made: list[StandInGraph], phases_run: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of all profiles, with the fallback for short budgets, and random starts and proposals for long ones."""
    model, images, labels, classes = with_unreachable_class(9)
    targets = (labels + 1) % 4 if targeted else None
    sample = torch.arange(9)
    near_linear, masked = sample < 4, sample > 6
    solved = []
    for run in (run_sequential, run_interleaved):
        monkeypatch.setattr(graphs, "can_capture", lambda points, run=run: run is run_interleaved)
        problem = pose(model, images, labels, targets=targets, norm=as_norm(norm), budget=budget)
        groups = [
            (rows, plan_all(profile.table(budget), problem.norm, budget, 2 - 2 * targeted, budget // PASSES_PER_START))
            for rows, profile in (
                (near_linear, NEAR_LINEAR),
                (~near_linear & ~masked, CURVED),
                (masked, MASKED),
            )
        ]
        run(problem, groups, classes)
        solved.append(problem)
        assert bool(graphs_made) == (run is run_interleaved)
    sequential, interleaved = solved
    names = [name for name, *_ in phases_run]
    assert names.count("descend") == (2 if budget < 200 else 3)  # in short near-linear tables only as fallback
    assert ("propose" in names) == (norm == "linf" and budget >= 200)
    assert torch.isfinite(sequential.incumbent.distance).all()
    torch.testing.assert_close(interleaved.incumbent.distance, sequential.incumbent.distance, rtol=1e-6, atol=0)
    if norm != "l0":  # where rounding decides which of several coordinates is changed
        torch.testing.assert_close(interleaved.incumbent.points, sequential.incumbent.points, rtol=1e-4, atol=1e-6)
    assert interleaved.budget.forwards.equal(sequential.budget.forwards)
    assert interleaved.budget.backwards.equal(sequential.budget.backwards)
    assert interleaved.incumbent.history.passes.equal(spent(interleaved))


@pytest.mark.parametrize("attack", [ALL_CURVED, ALL_NEAR_LINEAR], ids=["curved", "near-linear"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("budget", [60, 100, 199, 200, 620])
def test_a_run_spends_what_the_plan_says(attack: Race, norm: str, budget: int, phases_run: list[Any]) -> None:
    model = smooth()
    problem = pose(model, *inputs(model, n=4), norm=as_norm(norm), budget=budget)
    problem.solve(attack)
    plan = attack.plan(norm, budget, classes=4)
    profile = "CURVED" if attack is ALL_CURVED else "NEAR_LINEAR"
    assert phases_run == [(phase.name, phase.target, phase.passes) for phase in plan.phases[profile]]
    rows = plan.rows(profile)
    assert spent(problem).tolist() == [sum(row[-1] for row in rows)] * 4
    assert budget - 1 <= sum(row[-1] for row in rows) <= budget
    scan = [] if attack is ALL_CURVED and budget < SHORT else [1 + 3]  # a backward for each other class
    assert [row[-1] for row in rows if row[0] in ("profile", "scan")] == [4, *scan]


@pytest.mark.parametrize(("budget", "followed"), [(100, (3, 0)), (400, (3, 3)), (2000, (5, 5))])
def test_the_nearest_classes_are_followed(budget: int, followed: tuple[int, int]) -> None:
    plan = Race().plan("l2", budget)
    for profile, number in zip(("NEAR_LINEAR", "CURVED"), followed, strict=True):
        targets = [phase.target for phase in plan.phases[profile] if phase.name == "target"]
        assert targets == list(range(number))


def test_classes_are_followed_in_l0_from_600_passes_on_and_else_not_scanned() -> None:
    for budget, follows in ((100, False), (400, False), (599, False), (600, True)):
        rows = [row[0] for row in Race().plan("l0", budget).rows("SPARSE")]
        assert ("scan" in rows, "target 1" in rows) == (follows, follows)


def test_restarts_begin_at_600_passes_except_for_masked_samples() -> None:
    for budget, expected in ((400, {"MASKED"}), (599, {"MASKED"}), (600, {"NEAR_LINEAR", "CURVED", "MASKED"})):
        plan = Race().plan("l2", budget)
        assert {name for name, phases in plan.phases.items() if "restart" in [p.name for p in phases]} == expected


def test_which_norms_a_phase_is_for_does_not_depend_on_its_name() -> None:
    renamed = tuple(replace(phase, name=f"my {phase.name}") for phase in CURVED.long.search)
    attack = Race(curved=Profile("RENAMED", CURVED.short, replace(CURVED.long, search=renamed)))
    for norm, absent in (("l2", "my propose"), ("linf", "my scout")):
        names = {phase.name for phase in attack.plan(norm, 600).phases["RENAMED"]}
        assert names == {phase.name for phase in renamed} - {absent} | {"polish"}


def steep_and_high(x: Tensor) -> Tensor:
    """Class 1 has the higher logit everywhere near the input, class 2 the nearer boundary, at x₁ = 0.6."""
    return torch.stack([0 * x[:, 0], 0.6 * (x[:, 0] - 0.5) - 0.2, 40 * (x[:, 1] - 0.5) - 4], 1)


@pytest.mark.parametrize(
    ("attack", "budget"), [(Race(), 100), (Race(), 400), (ALL_CURVED, 400)], ids=["short", "long", "curved"]
)
def test_a_near_class_with_a_low_logit_is_found_by_following_it(attack: Race, budget: int) -> None:
    model, x, y = Function(steep_and_high), torch.full((2, 2), 0.5, dtype=torch.float64), torch.tensor([0, 0])
    found, untargeted = (
        ma.measure(model, x, y, "l2", attack=each, budget=budget).distance
        for each in (attack, attack.without("target", "restart"))  # a restart may find it by chance
    )
    assert found.tolist() == pytest.approx([0.1] * 2, rel=1e-4)
    assert (untargeted > 0.3).all()


def flat_and_bent(x: Tensor) -> Tensor:
    """A constraint that is linear in x₀ where x₁ < 0.5 and falls ever faster elsewhere."""
    t = x[:, 0] - 0.2
    c = torch.where(x[:, 1] < 0.5, 0.3 - t, 1 - t - 100 * t.square())
    return torch.stack([c, 0 * c], 1)


def test_samples_with_a_flat_boundary_are_near_linear(phases_run: list[Any]) -> None:
    x = torch.tensor([[0.2, 0.2], [0.2, 0.8], [0.2, 0.3]], dtype=torch.float64)
    problem = pose(Function(flat_and_bent), x, torch.zeros(3, dtype=torch.int64), budget=60)
    assert Race().classify(problem, 60)[0].tolist() == [True, False, True]
    problem = pose(Function(flat_and_bent), x, torch.zeros(3, dtype=torch.int64), budget=60)
    problem.solve(Race())
    expected = ["target", "polish", "descend", "restart", "polish", "polish"]
    assert [name for name, *_ in phases_run] == expected


def wall(x: Tensor) -> Tensor:
    """The gradient at the first inputs points along x₀, where nothing is; the boundary is at x₁ = 0.9."""
    c = torch.where(
        x[:, 1] > 0.9, -1.0, 1 - 0.3 * (x[:, 0] - 0.5).clamp(max=0.2) - 0.1 * (x[:, 1] - 0.5).relu().square()
    )
    return torch.stack([c + 3, 0 * c + 3], 1)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_samples_whose_gradients_mislead_are_masked(scale: float) -> None:
    """But not where the misleading gradient is a matter of a small neighbourhood only: they count as near-linear."""
    x, y = torch.full((2, 2), 0.5, dtype=torch.float64), torch.tensor([0, 0])
    classifier = Classifier(Function(wall), bounds=(0.5 - 0.5 * scale, 0.5 + 0.5 * scale))
    with validated(classifier, x, y) as (session, batch):
        near_linear, masked = Race().classify(session.problem(batch, ma.L2, budget=400), 400)
    assert near_linear.tolist() == [scale != 1.0] * 2
    assert masked.tolist() == [scale == 1.0] * 2


@pytest.mark.parametrize("slope", [0.1, 1.0])
def test_samples_whose_gradient_points_out_of_the_box_are_masked(slope: float) -> None:
    """x₀ is 0 and cannot fall; the gradient turns by the same angle whatever its slope."""
    x, y = torch.tensor([[0.0, 0.5, 0.0]], dtype=torch.float64), torch.tensor([0])
    turn = slope + 0.5

    def c(x: Tensor) -> Tensor:
        return 0.2 + slope * x[:, 0] - 0.5 * (x[:, 1] - 0.5) + turn * x[:, 2] * (x[:, 1] - 0.5).relu() / 0.4

    problem = pose(Function(lambda x: torch.stack([c(x), 0 * c(x)], 1)), x, y, budget=60)
    near_linear, masked = Race().classify(problem, 60)
    assert (near_linear.tolist(), masked.tolist()) == ([slope < 1], [slope == 1])


@pytest.mark.parametrize(("room", "turn", "few"), [(0.05, 0.4, True), (0.35, 2.8, False)])
def test_with_few_passes_in_l1_the_box_must_block_most_of_a_step(room: float, turn: float, few: bool) -> None:
    """The first coordinate has the largest gradient and this room; the others are ten times as far to go."""
    x, y = torch.zeros(1, 12, dtype=torch.float64), torch.tensor([0])
    x[0, 0] = 1 - room

    def c(x: Tensor) -> Tensor:
        others = x[:, 1:11].sum(1)  # the gradient turns to a cosine of 0.6 where they moved
        return 0.4 - (x[:, 0] - 1 + room) - 0.1 * others + turn * x[:, 11] * others

    def masked(passes: int) -> list[bool]:
        problem = pose(Function(lambda x: torch.stack([c(x), 0 * c(x)], 1)), x, y, norm=ma.L1, budget=passes)
        return Race().classify(problem, passes)[1].tolist()

    assert masked(60) == [few]
    assert masked(400) == [True]


@pytest.mark.parametrize("cosine", [0.45, 0.55])
def test_with_few_passes_in_l1_a_gradient_may_turn_less_where_the_step_hardly_lowers_c(cosine: float) -> None:
    x, y = torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([0])

    def c(x: Tensor) -> Tensor:
        u, v = x[:, 0] - 0.5, x[:, 1] - 0.5
        beyond = 0.35 + 1e-3 * ((1 - cosine**2) ** 0.5 * v - cosine * u)
        return torch.where(u < 0.05, 0.4 - u, beyond)

    def masked(passes: int) -> list[bool]:
        problem = pose(Function(lambda x: torch.stack([c(x), 0 * c(x)], 1)), x, y, norm=ma.L1, budget=passes)
        return Race().classify(problem, passes)[1].tolist()

    assert masked(60) == [cosine < 0.5]
    assert masked(400) == [False]


@pytest.mark.parametrize("phases", [("scout",), ("descend",), ("target",), ("scout", "descend", "target", "restart")])
@pytest.mark.parametrize("budget", [5, 30, 100, 240])
def test_any_phase_may_be_left_out(phases: tuple[str, ...], budget: int) -> None:
    model, attack = smooth(), Race(candidates=2).without(*phases)
    found = ma.measure(model, *inputs(model, n=5), "l2", attack=attack, budget=budget)
    assert int((found.forwards + found.backwards).max()) <= budget
    assert budget < 30 or bool(found.success.all())
    planned = [phase.name for each in attack.plan("l2", budget).phases.values() for phase in each]
    assert not set(phases) & set(planned)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_race_does_not_depend_on_the_batch(
    interleaved: bool, graphs_made: list[StandInGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do its random starts, of which there is one with 620 passes; the first sample has another profile."""
    monkeypatch.setattr(graphs, "can_capture", lambda points: interleaved)
    network = smooth()
    model = Function(lambda x: network(x) * (1 + 0.5 * torch.sin(20 * x.sum(1, keepdim=True))))
    images, labels = inputs(model, n=3)
    near_linear, _ = Race().classify(pose(model, images, labels, budget=620), 620)
    assert near_linear.tolist() == [False, True, True]
    together, alone = (ma.measure(model, images, labels, "l2", budget=620, batch=batch) for batch in (3, 1))
    assert bool(graphs_made) == interleaved
    torch.testing.assert_close(together.distance, alone.distance, rtol=1e-8, atol=0)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_rounding_does_not_decide_on_a_linear_model(norm: str) -> None:
    """No query lies on the boundary itself, where the batch decides on which side."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    model = Function(lambda x: x @ weight)
    images = 0.4 + 0.2 * torch.rand(16, 12, generator=generator, dtype=torch.float64)
    labels = model(images).argmax(1)
    together, alone = (ma.measure(model, images, labels, norm, budget=60, batch=batch) for batch in (16, 1))
    torch.testing.assert_close(together.distance, alone.distance, rtol=1e-12, atol=0)


def digits(n: int, name: str = "mnist-cnn") -> tuple[Classifier, Tensor, Tensor]:
    images, labels = samples("mnist", n)
    return Classifier(zoo(name)), images, labels


def test_a_sample_with_little_left_stops_no_other(graphs_made: list[StandInGraph]) -> None:
    with validated(*digits(6)) as (session, batch):
        problem = session.problem(batch, ma.L2, budget=200)
        problem.budget.left[0] = 7
        problem.solve(BOTH_PROFILES)
    assert int(spent(problem)[0]) <= 7
    assert int(spent(problem)[1:].min()) >= 195


def test_waiting_samples_are_not_charged(graphs_made: list[StandInGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a step cannot be captured."""
    passes = []
    with validated(*digits(8)) as (session, batch):
        for is_value in (graphs.is_value, lambda step: False):
            monkeypatch.setattr(graphs, "is_value", is_value)
            problem = session.problem(batch, ma.LINF, budget=60)
            problem.solve(BOTH_PROFILES)
            assert problem.incumbent.history.passes.equal(spent(problem))
            passes.append(spent(problem))
    assert graphs_made
    assert passes[0].equal(passes[1])
    assert int(passes[0].max()) <= 60


def test_finished_samples_change_nothing_for_the_others() -> None:
    passes = []
    with validated(*digits(3, "mnist-cnn-adv")) as (session, batch):  # all have the same profile
        for finished in (False, True):
            problem = session.problem(batch, ma.L2)
            problem.budget.deactivate(torch.tensor([False, False, finished]))
            problem.solve(Race(passes=220))
            passes.append(spent(problem)[:2])
    assert passes[0].equal(passes[1])
    assert int(passes[0].max()) <= 220
