"""Commands: what they print, where, and their exit codes."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

import marginattack
from marginattack import __version__
from marginattack.cli import COMMANDS, app
from marginattack.cli.common import Display, _minutes
from marginattack.cli.options import GROUPS
from marginattack.runs.settings import DataSettings, ModelSettings, Settings

RUNNER = CliRunner()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with its output piped."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # other tests run at the same time
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment)


def test_demo_prints_a_table_writes_a_page_and_leaves_stderr_empty(tmp_path: Path) -> None:
    result = python("-m", "marginattack", "demo", "--digits", "3", "--page", str(tmp_path / "page.html"))
    said = [line for line in result.stderr.splitlines() if not re.search(" after [0-9]+ s$|about", line)]
    assert (result.returncode, said) == (0, [])  # after half a minute, a busy machine shows progress
    words = "l2 linf accuracy median margin success backwards 100.0% mnist-cnn"
    levels = "1.00: 1.41: 1.73: 2.00: 0.06: 0.08: 0.10: 0.12:"
    assert {*words.split(), *levels.split()} <= {*result.stdout.split()}
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


LISTINGS = {
    "attacks": ["marginattack", "deepfool", "Zhang, Chang, Yu, Qian 2019"],
    "norms": ["l0", "l1", "l2", "linf"],
    "presets": ["mnist-l2", "imagenet-linf", "challenge", "rosen"],
    "models": ["zoo:mnist-cnn", "the paper's MNIST network"],
    "data": ["samples:mnist", "1,000 digits"],
}


@pytest.mark.parametrize("kind", LISTINGS)
def test_list_prints_names(kind: str) -> None:
    result = RUNNER.invoke(app, ["list", kind])
    assert (result.exit_code, result.stderr) == (0, "")
    assert [name for name in LISTINGS[kind] if name not in result.stdout] == []


BAD = {
    "list nothing": "cannot list 'nothing': choose one of attacks, norms, presets, models, data",
    "demo --digits 0": "--digits is 0: choose 1 to 1,000",
    "demo --digits 1001": "--digits is 1001",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_exits_with_code_2_and_one_line_on_stderr(command: str) -> None:
    result = RUNNER.invoke(app, command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"marginattack: {BAD[command]}")
    assert result.stderr.index("\n") == len(result.stderr) - 1


def test_an_interrupt_exits_with_code_130_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marginattack.runs.run.run", Mock(side_effect=KeyboardInterrupt))
    result = RUNNER.invoke(app, ["demo", "--digits", "1"])
    assert (result.exit_code, result.stderr) == (130, "marginattack: Interrupted.\n")


HELP = {
    "": ["demo", "measure", "report", "compare", "diagnose", "reproduce", "bench", "list"],
    "measure": ["--model MODEL", "--limit N", "--norm NORM", "--shuffle SEED", "--only-correct ", "[default: race]"],
    "diagnose": ["--expect-accuracy ACCURACY", "--trust-pickle ", "--config FILE", "--set KEY=VALUE"],
}


@pytest.mark.parametrize("command", HELP)
def test_help_is_fast_and_imports_no_torch(command: str) -> None:
    code = f"import sys; from marginattack.cli import app; app({[*command.split(), '--help']}, standalone_mode=False)"
    result = python("-c", f"{code}; import time; print(time.process_time(), 'torch' in sys.modules)")
    assert (result.returncode, result.stderr, result.stdout[-6:]) == (0, "", "False\n")
    assert float(result.stdout.split()[-2]) < 0.5  # seconds; a busy machine does not count
    assert [words for words in HELP[command] if words not in result.stdout] == []


def test_a_long_help_shows_groups_with_the_five_most_used_options_first() -> None:
    text = RUNNER.invoke(app, ["measure", "-h"]).stdout
    sections = dict(re.findall(r"^(\w[\w ]*):\n((?: .*\n)+)", text, flags=re.MULTILINE))
    assert [*sections] == [*GROUPS]
    options = {
        name: re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, flags=re.MULTILINE) for name, text in sections.items()
    }
    assert options["Most used"] == ["--model", "--data", "--norm", "--limit", "--out"]
    assert options["Other"] == ["--help"]  # every other option has a group


def test_help_of_other_commands_shows_what_they_need_among_the_most_used_options() -> None:
    for command, word in (("evaluate", "--eps EPS"), ("bound", "RUN <str>")):
        text = RUNNER.invoke(app, [command, "-h"]).stdout
        assert word in text[text.index("Most used:") : text.index("Model:\n")], command


def test_the_program_has_a_version_a_short_help_and_shell_completion() -> None:
    for arguments, printed in ((["--version"], f"marginattack {__version__}\n"), (["-h"], "Usage: "), ([], "Usage: ")):
        result = RUNNER.invoke(app, arguments, prog_name="marginattack")
        assert (result.exit_code, result.stderr) == (0, ""), arguments
        assert printed in result.stdout
    words = {"_MARGINATTACK_COMPLETE": "complete_bash", "COMP_WORDS": "marginattack measure --norm", "COMP_CWORD": "2"}
    assert "--normalize" in RUNNER.invoke(app, [], prog_name="marginattack", env=words).stdout


def test_every_command_prints_json() -> None:
    for name in COMMANDS:
        assert "--json " in RUNNER.invoke(app, [name, "--help"]).stdout, name
    for kind, names in LISTINGS.items():
        rows = json.loads(RUNNER.invoke(app, ["list", kind, "--json"]).stdout)
        assert {row["name"].rpartition(":")[2] for row in rows} >= {each.rpartition(":")[2] for each in names[:1]}
    settings = RUNNER.invoke(app, ["measure", "--model", "a", "--data", "b", "--print-config", "--json"]).stdout
    assert json.loads(settings)["data"]["source"] == "b"


def test_diagnose_prints_the_accuracy_and_judges_it(tmp_path: Path) -> None:
    with np.load(Path(marginattack.__file__).parent / "sources/samples/mnist.npz") as arrays:
        x, y = arrays["x"][:64], arrays["y"][:64].copy()
    np.savez(tmp_path / "wrong.npz", x=x, y=(y + 1) % 10)
    y[::3] = np.random.default_rng(0).integers(0, 10, len(y[::3]))
    np.savez(tmp_path / "some.npz", x=x, y=y)

    def diagnose(data: str, *more: str) -> tuple[int, str]:
        result = RUNNER.invoke(app, ["diagnose", "--model", "zoo:mnist-cnn", "--data", str(tmp_path / data), *more])
        return result.exit_code, result.stdout

    code, text = diagnose("wrong.npz", "--limit", "24")
    assert (code, "warning: too-few-samples (24 of 24)" in text) == (0, True)
    assert "Accuracy: 0.0% (0 of 24 samples)." in text
    code, text = diagnose("some.npz", "--expect-accuracy", "0.98")
    assert (code, "grave: accuracy-below-expected" in text) == (1, True)
    code, text = diagnose("some.npz", "--json")
    assert (code, json.loads(text)["findings"], json.loads(text)["samples"]) == (0, [], 64)
    assert json.loads(text)["accuracy"] == json.loads(text)["correct"] / 64 < 0.8


def test_every_setting_is_described_in_help() -> None:
    text = " ".join(RUNNER.invoke(app, ["measure", "--help"]).stdout.split())
    for name, field in [pair for each in (ModelSettings, DataSettings, Settings) for pair in each.model_fields.items()]:
        assert name in ("model", "data", "attack") or str(field.description) in text, name


def test_progress_is_logged_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marginattack.cli.common.LOG_INTERVAL", 0.05)
    for quiet in (False, True):
        with Display(quiet=quiet, note=lambda: "2 workers").progress("measuring", 8) as advance:
            time.sleep(0.08)  # a line without any sample done
            advance(2)
            time.sleep(0.1)
        first, *_, last = capsys.readouterr().err.splitlines() or ["", ""]
        assert bool(first) is not quiet
        if first:
            assert first == "marginattack: measuring 0/8, 2 workers after 0 s"
            assert re.fullmatch(r"marginattack: measuring 2/8, [\d.e+]+/s, \d s left, 2 workers after 0 s", last)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(99.4, "99 s"), (99.6, "1 min 40 s"), (200, "3 min 20 s"), (599.7, "10 min"), (3000, "50 min")],
)
def test_times_are_told_to_the_second_below_ten_minutes(seconds: float | int, said: str) -> None:
    assert _minutes(seconds) == said


def test_the_package_needs_only_torch_and_numpy_and_measure_stays_a_function() -> None:
    heavy = ["scipy", "pyarrow", "typer", "rich", "foolbox", "art", "safetensors", "pandas"]
    code = "import sys, marginattack.measuring, marginattack as ma; print(ma.measure.__name__, ma.Margins.__name__,"
    result = python("-c", f"{code} [name for name in {heavy} if name in sys.modules])")
    assert (result.stdout.strip(), result.stderr, result.returncode) == ("measure Margins []", "", 0)
