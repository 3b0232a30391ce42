"""Options of `report` and `compare` reach everything that they print and write."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from runs import made_up_run
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.report.charts import PLOTS
from marginattack.report.datasets import build_views
from marginattack.report.series import group_by_norm, read_runs
from marginattack.storage.manifest import write_manifest

RUNNER = CliRunner()


def cli(*arguments: object) -> str:
    result = RUNNER.invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_run(tmp_path_factory.mktemp("options") / "run", 120)


def robust(run: Path, eps: float) -> float:
    """The robust accuracy in linf, in percent."""
    series = next(each for each in read_runs([run]) if each.norm == "linf")
    return float(100 * (series.margins > eps).sum() / 120)


def test_the_page_tabulates_and_pins_the_eps_that_are_asked_for(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marginattack.report.page.bundle_script", str)  # slow, and not the point
    cli("report", run, "-o", tmp_path / "page.html", "--eps", "8/255", "--eps", "0.1")
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert data["pin"] == {"l2": 8 / 255, "linf": 8 / 255}
    curve = data["datasets"]["curve_linf"]["columns"]
    assert curve["robust"][curve["eps"].index(8 / 255)] == pytest.approx(robust(run, 8 / 255), rel=1e-3)
    assert f'data-v="{8 / 255:.9g}" data-norm="linf" data-typed="8/255">8/255</span>' in page
    assert f'data-v="{0.1:.9g}" data-norm="l2" data-typed="0.1">0.1</span>' in page
    cli("report", run, "-o", tmp_path / "page.html", "--eps", "0.03")
    page = (tmp_path / "page.html").read_text()
    assert 'data-norm="linf" data-typed="0.03">0.03</span>' in page  # as it was typed, not 7.65/255
    assert '"pin_text":{"l2":"0.03","linf":"0.03"}' in page
    assert "0.03: " in cli("report", run, "--text", "--eps", "0.03")
    cli("report", run, "-o", tmp_path / "page.html", "--eps", "8", "--unit", "255")
    page = (tmp_path / "page.html").read_text()
    assert f'data-v="{8 / 255:.9g}" data-norm="linf" data-typed="8">8</span>' in page  # in the unit of the page


def test_figures_take_eps_and_unit_and_text_is_printed_as_well(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 120, norms=("linf",))
    out = cli("report", run, "--text", "--figures", tmp_path, "--eps", "8", "--eps", "20", "--unit", "255")
    assert "Distances are in units of 1/255." in out
    assert f"{tmp_path}: panels.pdf, 6 charts as SVG, PDF and PNG, 3 tables as CSV and LaTeX" in out
    rows = list(csv.DictReader((tmp_path / "curve-linf.csv").read_text().splitlines()))
    assert [float(row["epsilon"]) for row in rows] == [8, 20]
    assert float(rows[0]["robust accuracy, %"]) == pytest.approx(robust(run, 8 / 255), rel=1e-5)
    (numbers,) = csv.DictReader((tmp_path / "numbers-linf.csv").read_text().splitlines())
    (part,) = json.loads(cli("report", run, "--json"))[0]["parts"]
    assert float(numbers["median margin"]) == pytest.approx(255 * part["median"], rel=1e-5)
    (view,) = build_views(group_by_norm(read_runs([run])), [8.0], 255)
    initial: dict[str, Any] = {each["name"]: each.get("value") for each in PLOTS[0].to_spec(view)["params"]}
    assert (initial["unit_scale"], initial["pin"]) == (255, 8 / 255)


def test_compare_shows_every_count_the_accuracies_and_what_a_run_lacks(run: Path, tmp_path: Path) -> None:
    other = made_up_run(tmp_path / "other", 100, norms=("linf", "l1"), seed=3)
    result = json.loads(cli("compare", run, other, "--eps", "8/255", "--json"))
    (row,) = result["rows"]
    mine, theirs = (next(each for each in read_runs([path]) if each.norm == "linf") for path in (run, other))
    both = {*mine.columns["input"][mine.measured].tolist()} & {*theirs.columns["input"][theirs.measured].tolist()}
    assert (row["samples_a"], row["samples_b"], row["shared"], row["n"]) == (120, 100, 100, len(both))
    assert (row["accuracy_a"], row["accuracy_b"]) == (mine.accuracy, theirs.accuracy)
    assert row["n"] < 100  # both correct
    assert row["robust"][0]["eps"] == 8 / 255
    assert row["robust"][0]["a"] == pytest.approx(robust(run, 8 / 255) / 100)
    assert [(each["norm"], each["in"]) for each in result["missing"]] == [("l2", str(run)), ("l1", str(other))]
    text = cli("compare", run, other)
    assert "120 → 100" in text
    assert "100 in both" in text
    assert f"{len(both)} correct in both" in text
    assert f"l2 (marginattack) is in {run}, but not in {other}: not compared." in text


@pytest.mark.parametrize("name", ["rep.pdf", "foo.txt", "rep.PDF"])
def test_a_page_is_not_written_into_a_file_of_another_format(run: Path, tmp_path: Path, name: str) -> None:
    result = RUNNER.invoke(app, ["report", str(run), "-o", str(tmp_path / name)])
    assert (result.exit_code, result.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert f"{name} ends in {Path(name).suffix}, but a report is an HTML page: name it .html" in result.stderr


@pytest.mark.parametrize("name", ["report.HTML", "report-v1.2"])
def test_a_page_is_written_whatever_else_its_name_ends_in(run: Path, tmp_path: Path, name: str) -> None:
    cli("report", run, "-o", tmp_path / name)
    assert "<html" in (tmp_path / name).read_text()


@pytest.mark.parametrize("command", ["report RUN --text", "report RUN --json", "report RUN", "compare RUN RUN"])
def test_negative_distances_are_refused(run: Path, command: str) -> None:
    words = [str(run) if word == "RUN" else word for word in command.split()]
    result = RUNNER.invoke(app, [*words, "--eps", "-1"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "eps is [-1.0]: give distances of at least 0" in result.stderr


def test_runs_whose_margins_mean_something_else_are_not_compared(run: Path, tmp_path: Path) -> None:
    within = made_up_run(tmp_path / "within", 20, radii={"marginattack": 0.2})
    bounded = made_up_run(tmp_path / "bounded", 20, identity={"space": {"bounds": ["0.0", "255.0"]}})
    for other, message in ((within, "within is not set and 0.2"), (bounded, "bounds is (0, 1) and (0, 255)")):
        result = RUNNER.invoke(app, ["compare", str(run), str(other)])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{other}: {message}: compare margins that were measured with the same" in result.stderr


def test_runs_without_a_norm_in_common_cannot_be_compared(run: Path, tmp_path: Path) -> None:
    other = made_up_run(tmp_path / "other", 20, norms=("l1",))
    result = RUNNER.invoke(app, ["compare", str(run), str(other)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{run} shares no norm with the other runs: measure in the same one" in " ".join(result.stderr.split())


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_the_page_remarks_a_search_in_low_precision(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marginattack.report.page.bundle_script", str)
    run = made_up_run(tmp_path / "run", 40)
    manifest = json.loads((run / "manifest.json").read_text())
    session = {"began": "now", "host": "a", "hardware": "a GPU", "batch": 40, "command": "measure"}
    sessions = [session, session | {"precision": precision}]  # the first one is of an earlier version
    write_manifest(run, manifest | {"sessions": sessions})
    cli("report", run, "-o", tmp_path / "page.html")
    shown = re.findall(r"<dt>Precision of the search</dt><dd>(\w+)\.", (tmp_path / "page.html").read_text())
    assert shown == ([precision] if precision == "fp16" else [])
