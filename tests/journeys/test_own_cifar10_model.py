"""An own CIFAR-10 model in Python: measured from a script, then from the command line with the weights in a file."""

from pathlib import Path

import pytest
import terminal
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import marginattack as ma
from marginattack.sources.data import samples

NET = """
import torch
from torch import nn


def network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=3), nn.ReLU(), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(1600, 10)
    )


def make():
    model = network()
    model.load_state_dict(torch.load("weights.pth", weights_only=True))
    return model
"""
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder: the network, its trained weights, the names of the classes."""
    path = tmp_path_factory.mktemp("cifar10")
    (path / "net.py").write_text(NET)
    (path / "classes.txt").write_text("\n".join(CLASSES))
    scope: dict[str, object] = {}
    exec(NET, scope)
    torch.manual_seed(0)
    model: nn.Module = scope["network"]()  # type: ignore[operator]
    images, labels = samples("cifar10")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    torch.save(model.state_dict(), path / "weights.pth")
    return path


def test_a_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    scope: dict[str, object] = {}
    exec(NET, scope)
    model: nn.Module = scope["make"]()  # type: ignore[operator]
    images, labels = samples("cifar10", 16)
    loader = DataLoader(TensorDataset(images, labels), batch_size=8)
    results = ma.measure(model, loader, norm=["Linf", 2], budget=40)
    linf = results["linf"]
    assert model.training  # as it was
    assert linf.summary()["accuracy"] > 0.9
    assert 0 < linf.summary()["median"] < 0.2
    levels = linf.robust_accuracy([0, 2 / 255, 8 / 255])
    assert levels == sorted(levels, reverse=True)
    frame = linf.to_pandas()
    assert len(frame) == 16
    linf.save("linf.parquet")
    assert ma.Margins.load("linf.parquet").distance.equal(linf.distance)


def test_the_command_line(folder: Path) -> None:
    source = ["--model", "net.py:make", "--data", "samples:cifar10", "--classes", "classes.txt"]
    out = terminal.run(folder, "measure", *source, "--sample", "20", "--norm", "linf", "--budget", "40", "--out", "run")
    assert "smallest margins" in out
    assert any(name in out for name in CLASSES)
    margins = ma.Margins.load(folder / "run")
    assert margins.classes == tuple(CLASSES)
    assert margins.label.bincount(minlength=10).tolist() == [2] * 10
    line = terminal.refused(folder, "measure", *source[:4], "--classes", "net.py", "--out", "other")
    assert "--classes net.py has 15 names, but the model has 10 classes" in line
