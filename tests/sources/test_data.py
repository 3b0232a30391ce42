"""Every form of --data: the samples, what no form takes, and what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_data import pixels, png, refused, whole

from marginattack.sources.data import FORMS, open_data, samples


def test_samples_are_those_that_are_bundled() -> None:
    data = open_data("samples:mnist")
    x, y = whole(data)
    images_, labels = samples("mnist")
    assert x.equal(images_)
    assert y.equal(labels)
    assert data.shape == (1, 28, 28)
    assert data.name == "samples:mnist"


def test_unknown_samples_are_refused() -> None:
    assert refused("samples:cifar") == "samples:cifar: no samples named 'cifar': choose one of mnist, cifar10"


def test_forms_that_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    for source in (tmp_path / "a.txt", tmp_path / "none", "mnist", "http://x/y"):
        assert f"choose one of {', '.join(FORMS)}" in refused(source)


@pytest.mark.parametrize(
    ("source", "option"), [("samples:mnist", "labels"), ("samples:mnist", "split"), (".", "split")]
)
def test_options_without_use_are_refused(source: str, option: str) -> None:
    assert refused(source, **{option: "z"}) == f"{source}: has no use for --{option} z: leave it out"


@pytest.mark.parametrize(
    ("module", "source", "line"),
    [
        ("PIL", "FOLDER", "pillow is not installed: pip install 'marginattack[images]'"),
        ("torchvision", "torchvision:MNIST", "torchvision is not installed: pip install 'marginattack[torchvision]'"),
        ("datasets", "hf:mnist", "datasets is not installed: pip install 'marginattack[hf]'"),
    ],
)
def test_missing_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, line: str) -> None:
    png(tmp_path / "ant" / "a.png", pixels(5, 5))
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert refused(tmp_path if source == "FOLDER" else source) == line


def test_a_torchvision_that_does_not_import_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms\\nmissing')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = refused("torchvision:MNIST")
    assert "torchvision is installed but does not import (operator torchvision::nms missing)" in line
    assert torch.__version__ in line


def test_the_core_does_not_import_the_extras() -> None:
    script = "import sys, marginattack.sources.data; print({'PIL', 'torchvision', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_rows_out_of_range() -> None:
    data = open_data("samples:mnist")
    for row in (-1, 1000):
        with pytest.raises(IndexError):
            data.read([0, row])
