"""The documentation says what the code and the records say, and its examples run."""

import doctest
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

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


def test_every_line_quoted_in_method_md_is_in_the_code() -> None:
    table = (ROOT / "docs/method.md").read_text().split("## Restoration")[0]
    lines = re.findall(r"^\|[^|]+\| `(.+?)` \|", table, flags=re.MULTILINE)
    source = "\n".join(path.read_text() for path in (ROOT / "src/marginattack").rglob("*.py"))
    assert len(lines) >= 14
    for line in lines:
        assert line in source, line


def test_readme_shows_the_recorded_comparison() -> None:
    readme = (ROOT / "README.md").read_text()
    record = json.loads((ROOT / "benchmarks/records/core.json").read_text())["numbers"]
    for name, row in record["rows"].items():
        shown = f"| {name} | {row['norm']} | {row['median']:.4f} | {row['success']:.0%} | {row['passes']:,.0f} |"
        assert shown in readme, shown


def test_pages_made_from_records_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pages = importlib.import_module("pages")
    assert (ROOT / "docs/parity.md").read_text() == pages.parity(), "run python benchmarks/pages.py"
    for page in pages.TABLES:
        text = (ROOT / page).read_text()
        assert text == pages.fill_in(page, text), f"{page}: run python benchmarks/pages.py"


def test_links_between_pages_resolve() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
