"""The documentation says what the code and the records say, and its examples run."""

import doctest
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import marginattack as ma

ROOT = Path(__file__).parents[1]


# The classes and functions of the public API. Values, such as norms and tables, have no docstring of their own.
PUBLIC = [name for name in ma.__all__ if inspect.isclass(getattr(ma, name)) or inspect.isfunction(getattr(ma, name))]


def test_the_public_api_is_listed() -> None:
    assert {"measure", "Margins", "Classifier", "Problem", "Race", "InputError"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_docstring_has_an_example_that_runs(name: str) -> None:
    docstring = inspect.cleandoc(getattr(ma, name).__doc__ or "")
    assert re.search(r"^Examples?:$", docstring, flags=re.MULTILINE), f"ma.{name} has no Example section"
    example = doctest.DocTestParser().get_doctest(docstring, {"ma": ma}, f"ma.{name}", None, None)
    assert example.examples, f"the Example section of ma.{name} has no >>> lines"
    output: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.DocTestRunner(optionflags=flags).run(example, out=output.append).failed == 0, "".join(output)


OLD_NAMES = [
    ("marginattack", "Refused", "InputError"), ("marginattack.problem", "Problem", "Problem"),
    ("marginattack.diagnose", "preflight", "preflight"), ("marginattack.peers", "peer", "external_attack"),
    ("marginattack.attacks.marginattack", "Slide", "TangentProjection"),
    ("marginattack.attacks.marginattack", "Shrink", "BallProjection"),
    ("marginattack.attacks.marginattack", "ByNorm", "DefaultProjection"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "old", "new"), OLD_NAMES)
def test_an_old_name_works_with_a_warning(module: str, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated: use .*{new}$"):
        assert getattr(importlib.import_module(module), old).__name__ == new
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(module).no_such_name  # noqa: B018


def test_packages_are_reachable_from_the_root() -> None:
    code = "import marginattack as ma; ma.attacks.PGD, ma.bounds.clever, ma.integrations.external_attack"
    code += "; ma.integrations.training.measure_epoch, ma.integrations.autoattack.AutoAttack"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_examples_of_python_md_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.+?)^```", (ROOT / "docs/python.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(block, scope)
    assert scope["m"].settings["enough"] == 0.1
    assert len(scope["fragile"]) > 0


def test_the_first_example_of_the_readme_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^```python\n(.+?)^```\n\n```text\n(.+?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert found
    exec(found[1], {})
    number = r"\d+(?:\.\d+)?"
    shown, printed = found[2], capsys.readouterr().out
    assert re.sub(number, "#", printed) == re.sub(number, "#", shown)
    values, expected = ([float(each) for each in re.findall(number, text)] for text in (printed, shown))
    assert values == pytest.approx(expected, rel=1e-2)  # other processors round differently


def test_the_picture_of_the_architecture_shows_the_layers_of_the_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = re.findall(r'class="layer".*?>(.+?)<', (ROOT / "docs/img/architecture.svg").read_text())
    places = {name: place for place, row in enumerate(contract) for name in row.split(" | ")}
    shown = [name for row in rows for name in row.split(" | ")]
    assert [places[name] for name in shown] == sorted(places[name] for name in shown)
    hidden = {"__main__", "problem", "diagnose", "peers", "_version", "_deprecation"}
    assert {*shown} == {*places} - hidden


def test_every_line_quoted_in_method_md_is_in_the_code() -> None:
    table = (ROOT / "docs/method.md").read_text().split("## Restoration")[0]
    lines = re.findall(r"^\|[^|]+\| `(.+?)` \|", table, flags=re.MULTILINE)
    source = "\n".join(path.read_text() for path in (ROOT / "src/marginattack").rglob("*.py"))
    assert len(lines) >= 14
    for line in lines:
        assert line in source, line


def test_method_md_shows_the_plan_of_race() -> None:
    shown = re.search(r"<!-- race plan: .+?-->\n```text\n(.+?)```\n", (ROOT / "docs/method.md").read_text(), re.DOTALL)
    assert shown
    assert shown.group(1) == f"{ma.Race().plan(norm='l2', budget=400)}\n"


@pytest.mark.parametrize("layer", ["core", "execution", "storage", "runs", "analysis"])
def test_contributing_lists_every_module(layer: str) -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## How to add")[0]
    row = re.search(rf"^\| `{layer}/` \|(.+?)\|", table, flags=re.MULTILINE)
    assert row
    modules = {path.stem for path in (ROOT / "src/marginattack" / layer).glob("*.py")} - {"__init__"}
    missing = modules - set(re.findall(r"\w+", row.group(1)))
    assert not missing, f"CONTRIBUTING.md, {layer}/: add {missing}"


def test_paths_named_in_contributing_and_in_ci_exist() -> None:
    text = "".join((ROOT / name).read_text() for name in ("CONTRIBUTING.md", ".github/workflows/test.yml"))
    paths = re.findall(r"\b(?:[a-z_]+/)+[a-z_]+\.py\b", text)
    assert len(paths) >= 20
    for path in paths:
        assert (ROOT / path).exists() or (ROOT / "src/marginattack" / path).exists(), path


def test_links_between_pages_resolve() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), ROOT / "CHANGELOG.md"]:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
