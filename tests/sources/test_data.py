"""--data: bundled samples, unknown forms and options, and missing packages."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data_helpers import error_of, pixels, png, read_all

from marginattack.sources.data import FORMS, open_data, samples


def test_samples_source_reads_the_bundled_samples() -> None:
    data = open_data("samples:mnist")
    x, y = read_all(data)
    expected, labels = samples("mnist")
    assert x.equal(expected)
    assert y.equal(labels)
    assert data.shape == (1, 28, 28)
    assert data.name == "samples:mnist"
    assert data.classes is None  # digits name themselves
    named = open_data("samples:cifar10")
    assert named.classes is not None
    assert named.classes[:2] + named.classes[-1:] == ["airplane", "automobile", "truck"]
    # of the arrays alone: runs of versions without names of classes resume
    assert named.digest() == "291b9227908232b8a0364b2be9bf83b69a476385ac86456b658ade6bb2333fc2"


def test_unknown_forms(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    for source in (tmp_path / "a.txt", tmp_path / "none", "http://x/y"):
        assert f"choose one of {', '.join(FORMS)}" in error_of(source)


@pytest.mark.parametrize(
    ("source", "option"), [("samples:mnist", "labels"), ("samples:mnist", "split"), (".", "split")]
)
def test_options_that_do_not_apply_are_refused(source: str, option: str) -> None:
    assert error_of(source, **{option: "z"}) == f"{source}: --{option} z does not apply to this form of data: omit it"


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
    assert error_of(tmp_path if source == "FOLDER" else source) == line


def test_a_broken_torchvision_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms\\nmissing')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = error_of("torchvision:MNIST")
    assert "torchvision is installed but fails to import (operator torchvision::nms missing)" in line
    assert torch.__version__ in line


def test_optional_packages_are_not_imported() -> None:
    script = "import sys, marginattack.sources.data; print({'PIL', 'torchvision', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_rows_out_of_range() -> None:
    data = open_data("samples:mnist")
    for row in (-1, 1000):
        with pytest.raises(IndexError):
            data.read([0, row])
