"""The choice of profiles: its conditions, and as benchmarks/profiles.py measures it; what masked samples start from."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.race.moves import Descent
from marginattack.attacks.race.sparse_moves import SmoothedCount
from marginattack.core.norms import L2
from marginattack.execution.session import open_session
from marginattack.sources.data import samples

ROOT = Path(__file__).parents[2]


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in ("experiments/train", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import profiles

    monkeypatch.setattr(profiles, "FIRST", 0)
    return profiles


def test_what_a_choice_loses_is_measured_against_the_best_profile_of_each_sample(profiles: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_file(profiles.NETWORKS["mnist-plain"].model().state_dict(), tmp_path / "mnist-plain.safetensors")
    model = profiles.load(tmp_path, "mnist-plain")
    images, _ = samples("mnist", 6)
    data = images, model(images).argmax(1)
    options = argparse.Namespace(samples=6, budget=30)
    row = profiles.measure("mnist-plain", data, tmp_path, "l2", options)
    assert row["n"] == 6
    losses = row["loss"]
    assert all(loss >= 0 for loss in losses.values())
    assert min(losses.values()) <= losses["Race"] <= max(losses.values())
    if row["near-linear"] == 1:
        assert losses["Race"] == pytest.approx(losses["NEAR_LINEAR"])
    assert losses["NEAR_LINEAR"] != losses["MASKED"]


def test_adversarial_points_of_training_stay_in_the_ball_and_the_box(profiles: Any) -> None:
    from tuning_networks import attack

    images, labels = samples("mnist", 4)
    model = profiles.NETWORKS["mnist-plain"].model()
    for norm, order in (("linf", torch.inf), ("l2", 2)):
        x = attack(model, images, norm, 0.2, 3, lambda logits: torch.nn.functional.cross_entropy(logits, labels))
        moved = torch.linalg.vector_norm((x - images).flatten(1), ord=order, dim=1)
        assert 0.1 < float(moved.min()) <= float(moved.max()) < 0.2001
        assert 0 <= float(x.min()) <= float(x.max()) <= 1


class Bent(nn.Module):
    """c(t) = ½ − t − bend · t² of the mean t of the inputs: the tangent plane at t = 0 is at ½, where c = −bend / 4."""

    def __init__(self, bend: float) -> None:
        super().__init__()
        self.bend = nn.Parameter(torch.tensor(bend))

    def forward(self, x: Tensor) -> Tensor:
        t = x.mean(1, keepdim=True)
        c = 0.5 - t - self.bend * t.square()
        return torch.cat([c, torch.zeros_like(c)], 1)


@pytest.mark.parametrize(
    ("bend", "near_linear"), [(0.3, True), (0.5, False), (-0.9, True), (-1.1, False)]
)  # c(z) is −0.15, −0.25, 0.45 and 0.55 of c(x₀)
def test_a_near_linear_sample_ends_near_the_boundary_and_hardly_overshoots(bend: float, near_linear: bool) -> None:
    with open_session(ma.Classifier(Bent(bend))) as session:
        problem = session.problem(session.validate(torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64)), L2, budget=50)
        found, _ = ma.Race().classify(problem, 50)
    assert bool(found) == near_linear


def test_masked_samples_restart_where_the_norm_needs_it() -> None:
    def starts(norm: str, budget: int, profile: str) -> list[str]:
        phases = ma.Race().plan(norm, budget).phases[profile]
        return [phase.start for phase in phases if phase.name in ("restart", "smooth")]

    assert starts("linf", 600, "MASKED") == ["corner", "flip", "random"]
    assert starts("l0", 600, "MASKED_SPARSE") == ["input", "incumbent", "incumbent", "random"]
    assert starts("l0", 600, "SPARSE") == ["input", "random", "incumbent", "random"]
    searches = [phase for phase in ma.Race().plan("l0", 100).phases["MASKED_SPARSE"] if phase.name == "smooth"]
    assert [(type(phase.move), phase.start) for phase in searches] == [
        (SmoothedCount, "input"), (SmoothedCount, "incumbent"),
    ]  # fmt: skip
    first, second = (phase.numbers[0][0] for phase in searches)  # steps: the second halves changes
    assert (first, second) == (1.0, 0.5)
    moves = [ma.Race().plan(norm, 100).phases["MASKED"][0].move for norm in ("l1", "l2", "linf")]
    assert [move.memory for move in moves if isinstance(move, Descent)] == [0.7, 0.25, 0.25]
    assert "MASKED_SPARSE move" in str(ma.Race().plan("l0", 100))


def test_the_last_descent_is_finer_in_linf_with_many_passes() -> None:
    def pulse(norm: str, budget: int) -> float:
        return ma.Race().plan(norm, budget).phases["CURVED"][-1].numbers[0][1]

    assert [pulse("linf", 400), pulse("linf", 100), pulse("l2", 400)] == [0.02, 0.05, 0.05]


def test_slides_towards_classes_average_gradients_whatever_the_budget() -> None:
    for budget in (100, 400):
        slides = [p for p in ma.Race().plan("l2", budget).phases["NEAR_LINEAR"] if p.name == "target"]
        assert slides
        assert all(phase.numbers[1][2] > 0 for phase in slides)
