"""The commands: what they print, where, and how they end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marginattack.cli import app

RUNNER = CliRunner()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, as a user has it, with its output piped."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # other tests run beside it
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=alone)


def test_the_demo_prints_its_table_writes_its_page_and_is_quiet_on_stderr(tmp_path: Path) -> None:
    result = python("-m", "marginattack", "demo", "--digits", "3", "--page", str(tmp_path / "page.html"))
    assert (result.returncode, result.stderr) == (0, "")
    words = result.stdout.split()
    for word in ("l2", "linf", "accuracy", "median", "margin", "success", "backwards", "100.0%", "mnist-cnn"):
        assert word in words
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    for level in ("1.00:", "1.41:", "1.73:", "2.00:", "0.06:", "0.08:", "0.10:", "0.12:"):
        assert level in words


LISTINGS = {
    "attacks": ["marginattack", "deepfool", "Zhang, Chang, Yu, Qian 2019"],
    "norms": ["l0", "l1", "l2", "linf"],
    "presets": ["mnist-l2", "imagenet-linf", "challenge", "rosen"],
    "models": ["zoo:mnist-cnn", "The paper's MNIST network"],
    "data": ["samples:mnist", "1,000 digits"],
}


@pytest.mark.parametrize("what", LISTINGS)
def test_list_names_what_there_is(what: str) -> None:
    result = RUNNER.invoke(app, ["list", what])
    assert result.exit_code == 0
    for name in LISTINGS[what]:
        assert name in result.stdout
    assert result.stderr == ""


BAD = {
    "list nothing": "cannot list 'nothing': choose one of attacks, norms, presets, models, data",
    "demo --digits 0": "--digits is 0: 1 to 1,000 digits are bundled",
    "demo --digits 1001": "--digits is 1001",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_ends_with_code_2_and_one_line_on_stderr(command: str) -> None:
    result = RUNNER.invoke(app, command.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"marginattack: {BAD[command]}")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")


def test_an_interrupt_ends_with_code_130_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("marginattack.cli.demo._demo", interrupted)
    result = RUNNER.invoke(app, ["demo", "--digits", "1"])
    assert (result.exit_code, result.stderr) == (130, "marginattack: interrupted\n")


def test_help_names_the_commands() -> None:
    result = python("-m", "marginattack", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    for command in ("demo", "measure", "report", "compare", "diagnose", "list"):
        assert command in result.stdout


def test_import_needs_torch_and_numpy_alone() -> None:
    heavy = ["scipy", "pyarrow", "typer", "rich", "foolbox", "art", "safetensors", "pandas"]
    result = python("-c", f"import sys, marginattack; print([name for name in {heavy} if name in sys.modules])")
    assert (result.stdout.strip(), result.stderr, result.returncode) == ("[]", "", 0)
