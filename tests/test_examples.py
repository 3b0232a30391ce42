"""The scripts in examples/ run, each in a folder of its own, and show what they are for."""

import re
import runpy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torchvision_stub
from typer.testing import CliRunner

from marginattack.cli import app

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torchvision_stub.install()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(name: str) -> dict[str, Any]:
    """What a script defines; it runs only what is outside of ``main``."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_own_model(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    margins = load("own_model")["main"]()
    assert len(margins) == 20
    assert margins.success.all()
    assert "robust accuracy at 0.02: " in capsys.readouterr().out
    assert (folder / "own-model.parquet").exists()


def test_timm_photos(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    script = load("timm_photos")
    margins = script["main"](*script["make_photos"](folder))
    assert margins.adversarial.shape == (3, 3, 160, 160)  # of the model's metadata
    assert re.search(r"^0\.png: \d", capsys.readouterr().out, re.MULTILINE)


def test_onnx_audit(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    script = load("onnx_audit")
    passed = script["main"](*script["make_files"](folder))
    share = re.search(r"robust accuracy at 0.01: (\d+)%, required 50%: (passed|failed)", capsys.readouterr().out)
    assert share
    assert passed == (share[2] == "passed") == (int(share[1]) >= 50)


def test_tabular(capsys: pytest.CaptureFixture[str]) -> None:
    margins = load("tabular")["main"]()
    assert margins.success.all()
    assert (margins.perturbation[:, 0] == 0).all()  # age is fixed
    assert "age" not in capsys.readouterr().out


def test_training() -> None:
    history = load("training")["main"](epochs=4)
    assert len(history) == 2
    assert [each["margin/samples"] for each in history] == [24, 24]  # the same inputs every time
    assert history[0]["margin/p10"] <= history[0]["margin/median"]


def run_here(command: list[str], check: bool) -> None:
    """Run a command of marginattack in this process."""
    assert check
    ended = CliRunner().invoke(app, command[3:])
    assert ended.exit_code == 0, ended.output


def test_cluster() -> None:
    """In this process, without Ray."""
    main = load("cluster")["main"]
    main.__globals__["subprocess"] = SimpleNamespace(run=run_here)
    assert len(main(["--engine", "serial", "--out", "run"])) == 8


@pytest.mark.parametrize(
    ("words", "left"),
    [("own_model", "own-model.parquet"), ("timm_photos", ""), ("onnx_audit", ""), ("tabular", ""), ("training", ""),
     ("cluster --engine serial", "cluster-run")],
)  # fmt: skip
def test_as_a_script(
    words: str, left: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice: the second run does not fail over the files of the first."""
    name, *options = words.split()
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    monkeypatch.setattr(subprocess, "run", run_here)
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"^0$") if name == "onnx_audit" else nullcontext():
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == ({left} if left else set())


@pytest.mark.slow
def test_cluster_with_ray() -> None:
    assert len(load("cluster")["main"](["--workers", "1", "--out", "run"])) == 8


def test_every_example_is_listed_and_tested() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == set(re.findall(r"\[(\w+)\.py\]", (EXAMPLES / "README.md").read_text()))
    assert scripts == {name.removeprefix("test_") for name in vars(sys.modules[__name__]) if name[5:] in scripts}
