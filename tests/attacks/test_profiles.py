"""The choice of profiles, as benchmarks/profiles.py measures it on the networks of experiments/train."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

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
