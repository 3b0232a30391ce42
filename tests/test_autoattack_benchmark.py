"""benchmarks/autoattack.py: verdicts of both attacks, counted alike, stored, resumed and compared."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from models import inputs, smooth
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import autoattack
import suite_cells
from record import CountingModel

import marginattack as ma
from marginattack.core.classifier import Classifier

RADII = {"linf": 0.3, "l2": 3.0}
SOON, LATER = time.monotonic(), time.monotonic() + 1000


@pytest.fixture(scope="module")
def workload() -> suite_cells.Workload:
    """Images that are channels-last in memory, as those of an .npz file, on a network that is easily fooled."""
    model = nn.Sequential(nn.Flatten(), smooth(d=75, classes=5, dtype=torch.float32))
    images, labels = inputs(model, (3, 5, 5), n=4)
    images = images.to(memory_format=torch.channels_last)
    made = suite_cells.SuiteModel("made-up", lambda: model)
    return suite_cells.Workload(made, Classifier(model), images, labels, "d")


@pytest.mark.parametrize("norm", RADII)
def test_autoattack_takes_images_that_are_channels_last(workload: suite_cells.Workload, norm: str) -> None:
    pytest.importorskip("pyautoattack")
    robust, passes = autoattack.run_autoattack(workload, norm, RADII[norm])
    assert not robust.any()
    assert 2 <= passes < 1000


def test_the_default_attack_is_counted_as_autoattack_is(workload: suite_cells.Workload) -> None:
    counted = CountingModel(workload.classifier.model)
    n = len(workload.images)
    found = ma.measure(counted, workload.images, workload.labels, "l2", budget=200, enough=0.01, diagnose=False)
    spent = int((found.forwards + found.backwards).sum())
    assert spent > 100 * n
    assert 0 <= counted.forwards + counted.backwards - spent <= 20 * n  # validation, calibration, verification


def test_a_verdict_is_stored_and_not_run_again(
    workload: suite_cells.Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoattack, "prepare", lambda *_: workload)
    options: Any = argparse.Namespace(data=[], samples=4, work=tmp_path)
    task = autoattack.Task("race", "made-up", "l2", 3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoattack, "run_race", lambda *_: (torch.zeros(4), 1.0))
        assert autoattack.run_task(task, options, SOON).endswith("not done within the time limit")
    assert "0.0% robust" in autoattack.run_task(task, options, LATER)
    assert autoattack.run_task(task, options, LATER) == ""
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["robust"] == "0000"


def test_the_longest_tasks_are_first() -> None:
    options = argparse.Namespace(by=["autoattack"], models=["mnist-cnn", "cifar10-resnet32"], norms=["linf", "l1"])
    tasks = autoattack.plan(options)
    assert [(task.norm, task.model) for task in tasks[:3]] == [
        ("l1", "cifar10-resnet32"), ("l1", "mnist-cnn"), ("linf", "cifar10-resnet32"),
    ]  # fmt: skip
    assert len(tasks) == 8


def test_verdicts_are_compared_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoattack, "RECORDS", tmp_path)
    monkeypatch.setenv("OUT", str(tmp_path))

    def store(folder: str, by: str, robust: str, passes: float) -> Path:
        verdict = {"by": by, "model": "m", "norm": "l2", "eps": 1.0, "digest": "d", "robust": robust, "passes": passes}
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{by}.json").write_text(json.dumps(verdict))
        return tmp_path / folder

    store("first", "autoattack", "1100", 4000)
    autoattack.finish([store("first", "race", "1111", 2000)])
    autoattack.finish([store("second", "race", "1010", 1000)])
    numbers = json.loads((tmp_path / "autoattack.json").read_text())["numbers"]
    (row,) = numbers["rows"]
    assert (row["race"], row["autoattack"], row["only_race"], row["only_autoattack"]) == (0.5, 0.5, 1, 1)
    assert len(numbers["verdicts"]) == 2
    assert autoattack.summarise(numbers["rows"]) == (
        "Robust accuracy by `race` is at or below AutoAttack's at 1 of 1 radii, with 25% to 25% of its passes."
    )


def test_the_rounding_of_pixels_is_no_step_beyond_the_radius() -> None:
    """In float32 x + 0.00142 is up to 1.5e-5 of it too far, where AutoAttack ends on the ball."""
    x = (torch.arange(256) / 255).float()
    distance = (((x + 0.00142) - x.double()).abs()).double()
    assert autoattack.is_within(distance, 0.00142).all()
    assert not autoattack.is_within(torch.tensor([0.001421]), 0.00142).any()
