"""Commands: what they print, where, and their exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.cli.common import progress
from marginattack.runs.settings import Settings

RUNNER = CliRunner()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with its output piped."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}  # other tests run at the same time
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_demo_prints_a_table_writes_a_page_and_leaves_stderr_empty(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("kind", LISTINGS)
def test_list_prints_names(kind: str) -> None:
    result = RUNNER.invoke(app, ["list", kind])
    assert (result.exit_code, result.stderr) == (0, "")
    for name in LISTINGS[kind]:
        assert name in result.stdout


BAD = {
    "list nothing": "cannot list 'nothing': choose from attacks, norms, presets, models, data",
    "demo --digits 0": "--digits is 0: choose 1 to 1,000",
    "demo --digits 1001": "--digits is 1001",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_exits_with_code_2_and_one_line_on_stderr(command: str) -> None:
    result = RUNNER.invoke(app, command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"marginattack: {BAD[command]}")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")


def test_an_interrupt_exits_with_code_130_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("marginattack.runs.run.run", interrupt)
    result = RUNNER.invoke(app, ["demo", "--digits", "1"])
    assert (result.exit_code, result.stderr) == (130, "marginattack: Interrupted.\n")


HELP = {
    "": ["demo", "measure", "report", "compare", "diagnose", "reproduce", "bench", "list"],
    "measure": ["--model MODEL", "--limit N", "--norm NORM", "--shuffle SEED", "--only-correct ", "[default: race]"],
    "diagnose": ["--expect-accuracy ACCURACY", "--trust-pickle ", "--config FILE", "--set KEY=VALUE"],
}


@pytest.mark.parametrize("command", HELP)
def test_help_is_complete_and_imports_no_torch(command: str) -> None:
    code = f"import sys; from marginattack.cli import app; app({[*command.split(), '--help']}, standalone_mode=False)"
    result = python("-c", f"{code}; print('torch' in sys.modules)")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("False\n")
    for words in HELP[command]:
        assert words in result.stdout


def test_every_setting_has_a_description_and_an_option() -> None:
    text = " ".join(RUNNER.invoke(app, ["measure", "--help"], env={"COLUMNS": "100"}).stdout.split())
    model, data = (Settings.model_fields[name].annotation.model_fields for name in ("model", "data"))  # type: ignore[union-attr]
    settings = {name: field for name, field in Settings.model_fields.items() if name not in ("model", "data")}
    for name, field in {**model, **data, **settings}.items():
        assert field.description, name
        if name not in ("source", "attack"):
            assert f"--{name.removesuffix('s') if name in ('norms', 'attacks') else name.replace('_', '-')} " in text
            assert field.description in text


def test_long_tasks_log_a_line_per_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("marginattack.cli.common.LOG_INTERVAL", 0)
    with progress("measuring", 8, note=lambda: "2 workers") as advance:
        advance(2)
        advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "marginattack: measuring 2/8, 2 workers"
    assert lines[1].startswith("marginattack: measuring 4/8, ")
    assert lines[1].endswith("/s, 2 workers, 0 min left")
    with progress("checking", 8) as advance:
        advance(8)
    assert capsys.readouterr().err == ""


def test_the_package_needs_only_torch_and_numpy() -> None:
    heavy = ["scipy", "pyarrow", "typer", "rich", "foolbox", "art", "safetensors", "pandas"]
    code = f"import sys, marginattack as ma; ma.measure; print([name for name in {heavy} if name in sys.modules])"
    result = python("-c", code)
    assert (result.stdout.strip(), result.stderr, result.returncode) == ("[]", "", 0)


def test_the_function_measure_is_not_hidden_by_its_module() -> None:
    result = python("-c", "import marginattack.measure, marginattack as ma; print(ma.measure.__name__)")
    assert (result.stdout, result.stderr) == ("measure\n", "")
