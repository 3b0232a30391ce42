"""Tabular data and sounds: features with their own bounds, units and fixed columns; arrays (n, channels, samples)."""

import importlib
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import terminal
import torch

import marginattack as ma

ONNX = Path(__file__).parent.parent / "data/onnx"
FEATURES = ["age", "hours", "income", "sex"]
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([50.0, 40.0, 30000.0, 0.5]))
        self.register_buffer("unit", torch.tensor([20.0, 10.0, 20000.0, 0.5]))
        self.register_buffer("weight", torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.6, 0.8, 3.0]]))

    def forward(self, x):
        return ((x - self.mean) / self.unit) @ self.weight.T


def make():
    return Net().eval()
"""
BOUNDS, SCALE = "age=18:100,hours=0:100,income=0:inf,sex=0:1", "age=10,hours=5,income=10000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of people as CSV and Parquet, and a model that weighs their columns."""
    path, rng, n = tmp_path_factory.mktemp("people"), np.random.default_rng(0), 60
    people = pd.DataFrame({
        "name": [f"person {i}" for i in range(n)], "age": rng.integers(18, 90, n),
        "hours": rng.normal(40, 9, n).round(1), "income": rng.lognormal(10, 0.7, n).round(2),
        "sex": rng.integers(0, 2, n),
    })  # fmt: skip
    (path / "net.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    scores = scope["make"]()(torch.tensor(people[FEATURES].to_numpy(), dtype=torch.float32))
    people["label"] = np.where(scores.argmax(1).numpy() == 1, "granted", "denied")  # alphabetical: denied is class 0
    people.to_csv(path / "people.csv", index=False)
    people.to_parquet(path / "people.parquet")
    return path


def test_tables(folder: Path) -> None:
    columns = ["--bounds", BOUNDS, "--scale", SCALE, "--fixed", "sex", "--norm", "l2", "--budget", "30"]
    for source in ("people.csv", "people.parquet"):
        measure = ["measure", "--model", "net.py:make", "--data", source, *columns]
        out = terminal.run(folder, *measure, "--sample", "20", "--out", f"run-{source}")
        assert "granted" in out
        assert "person " in out
    csv, parquet = (ma.Margins.load(folder / f"run-{source}") for source in ("people.csv", "people.parquet"))
    assert csv.distance.equal(parquet.distance)
    assert csv.label.bincount().tolist() == [10, 10]
    assert csv.original is not None
    change = (csv.adversarial - csv.original)[csv.success]
    assert (change[:, 3] == 0).all()
    assert (change[:, :3] != 0).any(1).all()
    assert (csv.adversarial >= torch.tensor([18.0, 0, 0, 0])).all()
    expected = (change.double() / torch.tensor([10, 5, 1e4, 1])).norm(dim=1)
    assert torch.allclose(csv.distance[csv.success], expected)
    words = ["measure", "--model", "net.py:make", "--data", "people.csv", "--out", "no"]
    line = terminal.refused(folder, *words)
    assert line.endswith("state the bounds of other data with --bounds LO,HI, or -inf,inf")
    line = terminal.refused(folder, *words, "--bounds", "age=18:30")
    assert re.search(r"people.csv: column 'age' is \d+ in row \d+, outside the bounds 18 to 30: widen --bounds", line)


def test_the_same_in_python(folder: Path) -> None:
    scope: dict[str, Any] = {}
    exec(NET, scope)
    run = ma.Margins.load(folder / "run-people.csv")
    space: dict[str, Any] = {"bounds": ([18, 0, 0, 0], [100, 100, np.inf, 1]), "scale": [10, 5, 1e4, 1]}
    fixed = [False, False, False, True]
    margins = ma.measure(scope["make"](), run.original, run.label, "l2", budget=30, fixed=fixed, **space)
    assert torch.allclose(margins.distance, run.distance, rtol=1e-3)


def test_sounds(tmp_path: Path) -> None:
    rng, sounds = np.random.default_rng(0), []
    for number in range(12):
        tone = 0.4 * np.sin(np.arange(200) * rng.uniform(0.02, 1.5)) + 0.05 * rng.normal(size=200)
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes((32767 * tone).astype("<i2").tobytes())
        with wave.open(str(tmp_path / f"{number}.wav"), "rb") as stored:
            sounds.append(np.frombuffer(stored.readframes(200), "<i2").astype(np.float32) / 32768)
    x = np.stack(sounds)[:, None]  # (n, channels, samples)
    session: Any = importlib.import_module("onnxruntime").InferenceSession(str(ONNX / "audio-20.onnx"))
    y = session.run(None, {session.get_inputs()[0].name: x})[0].argmax(1)
    np.save(tmp_path / "sounds.npy", x)
    np.save(tmp_path / "labels.npy", y)
    source = ["--model", str(ONNX / "audio-20.onnx"), "--data", "sounds.npy", "--labels", "labels.npy"]
    terminal.run(tmp_path, "measure", *source, "--bounds", "-1,1", "--norm", "linf", "--budget", "30", "--out", "run")
    images = terminal.read(tmp_path / "run", "images")
    adversarial = np.array(images["adversarial"].to_pylist(), dtype=np.float32).reshape(x.shape)
    margins = ma.Margins.load(tmp_path / "run")
    again = session.run(None, {session.get_inputs()[0].name: adversarial})[0].argmax(1)
    assert margins.success.any()
    assert (again != y)[margins.success.numpy()].all()
    assert abs(adversarial).max() <= 1
    assert adversarial.min() < 0
