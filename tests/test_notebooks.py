"""The notebooks of the site run, print what they show, and show what they claim."""

import io
import json
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torchvision_stub
from typer.testing import CliRunner

from marginattack.cli import app

TUTORIALS = Path(__file__).parents[1] / "docs/tutorials"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_stub.install()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def execute(source: str, scope: dict[str, Any]) -> str:
    """Run a cell as Jupyter does, commands in this process, and return what it prints."""
    if source.startswith("!marginattack "):
        result = CliRunner().invoke(app, shlex.split(source)[1:], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout
    with redirect_stdout(io.StringIO()) as printed:
        exec(source, scope)
    return printed.getvalue()


def words(text: str) -> list[str]:
    """The words of a text: numbers may differ in the last digits, and with them the width of a table."""
    return sorted(re.findall(r"[A-Za-z]{2,}", text))


def run(name: str) -> dict[str, Any]:
    """Run a notebook; each cell must print what the stored one shows, up to numbers."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads((TUTORIALS / f"{name}.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            shown = "".join(line for output in cell["outputs"] for line in output.get("text", []))
            assert words(execute("".join(cell["source"]), scope)) == words(shown)
    return scope


def test_first_margins() -> None:
    scope = run("first-margins")
    assert scope["more"].distance.mean() <= scope["m"].distance.mean()


def test_onnx_audit() -> None:
    assert len(run("onnx-audit")["m"]) == 6


def test_comparing_defences() -> None:
    scope = run("comparing-defences")
    assert (scope["b"].distance > 2 * scope["a"].distance).all()  # adversarial training helps
    assert scope["pgd"].robust_accuracy(0.15) == 1  # masked gradients
    assert scope["square"].robust_accuracy(0.15) < 0.5


def test_every_notebook_is_tested_and_stored_with_its_outputs() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.ipynb")} == {"first-margins", "onnx-audit", "comparing-defences"}
    for path in TUTORIALS.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert any(cell.get("outputs") for cell in cells), f"{path.name}: jupyter nbconvert --execute --inplace"
        assert not any(output["output_type"] == "error" for cell in cells for output in cell.get("outputs", []))
