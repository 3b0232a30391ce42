"""Gates for CI: `marginattack check`, its files, and the pytest fixture."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from runs import made_up_run
from typer.testing import CliRunner

from marginattack import InputError
from marginattack.cli import app
from marginattack.margins import Margins
from marginattack.report.gates import check_result, parse_gates
from marginattack.report.series import load_series
from marginattack.storage.manifest import write_manifest
from marginattack.storage.run_folder import RunFolder

RUNNER = CliRunner()
PASSED = ["--accuracy", "0.9", "--median-margin", "l2:0.5", "--robust-accuracy", "linf@8/255:0.45"]
FAILED = ["--median-margin", "linf:10/255", "--median-margin", "linf:1/2", "--robust-accuracy", "l2@1:0.99"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two norms, accuracy 97 %."""
    run = made_up_run(tmp_path_factory.mktemp("gates") / "run", 200)
    return edit(run, verified={"rows": 400, "failed": 0})


def edit(run: Path, **entries: Any) -> Path:
    """Replace entries of the manifest."""
    manifest = json.loads((run / "manifest.json").read_text())
    write_manifest(run, manifest | entries)
    return run


def test_gates_that_hold_end_with_code_0(run: Path) -> None:
    result = RUNNER.invoke(app, ["check", str(run), *PASSED])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "3 of 3 gates passed." in result.stdout
    assert RUNNER.invoke(app, ["check", str(run), *PASSED, "--quiet"]).stdout == ""


def test_a_failed_gate_ends_with_code_1_and_a_table(run: Path) -> None:
    result = RUNNER.invoke(app, ["check", str(run), *PASSED, *FAILED, "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["passed"], [row["passed"] for row in report["gates"]].count(False)) == (False, 2)
    seen = {row["gate"]: row["value"] for row in report["gates"]}
    l2, linf = load_series(RunFolder(run))
    assert seen["accuracy"] == l2.accuracy == pytest.approx(0.97, abs=0.03)
    assert seen["median margin in l2"] == l2.median
    assert seen["robust accuracy at linf ≤ 8/255"] == (linf.margins > 8 / 255).sum() / 200
    table = RUNNER.invoke(app, ["check", str(run), *PASSED, *FAILED])
    assert (table.exit_code, table.stdout.count("FAILED"), table.stdout.count("passed")) == (1, 2, 4)
    assert "2 of 6 gates failed." in table.stdout
    quiet = RUNNER.invoke(app, ["check", str(run), *PASSED, *FAILED, "--quiet"]).stdout
    assert (quiet.count("FAILED"), quiet.count("passed"), "2 of 6 gates failed." in quiet) == (2, 0, True)


def test_outcomes_are_written_for_ci(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    files = ["--junit", str(tmp_path / "new/gates.xml"), "--github-summary"]
    assert RUNNER.invoke(app, ["check", str(run), *PASSED, *FAILED, *files]).exit_code == 1
    suite = ElementTree.parse(tmp_path / "new/gates.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase/failure"))) == ("6", "2", 2)
    assert "median margin in linf (marginattack)" in [case.get("name") for case in suite]
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("before\n### marginattack: ")
    assert summary.count("| FAILED |") == 2


def test_what_was_not_measured_cannot_be_checked(run: Path, tmp_path: Path) -> None:
    part = made_up_run(tmp_path / "part", 100, shard=50, leave_out=1)
    unverified = made_up_run(tmp_path / "unverified", 20)
    for folder, gate, message in (
        (unverified, "l2:0.1", "is not finished: it was not verified; run its `measure` command again"),
        (run, "l1:3", "median margin in l1 cannot be checked: only l2, linf were measured; measure l1 too"),
        (part, "l2:0.1", "is not finished: 2 shards are missing; run its `measure` command again"),
    ):
        result = RUNNER.invoke(app, ["check", str(folder), "--median-margin", gate])
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_a_distance_that_no_image_exceeds_cannot_be_checked(run: Path) -> None:
    result = RUNNER.invoke(app, ["check", str(run), "--robust-accuracy", "linf@8:0.4"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the distance 8 is given, but no input is farther away than 1 in linf: did you mean 8/255?" in result.stderr


def test_gates_below_the_distance_at_which_samples_stopped_cannot_be_checked(run: Path) -> None:
    margins = Margins.load(run, norm="linf")
    early = replace(margins, settings=margins.settings | {"enough": 8 / 255})
    for gates in ({"robust_accuracy": "linf@4/255:0.4"}, {"median_margin": "linf:0.01"}):
        with pytest.raises(InputError, match="cannot be checked: samples stopped within 8/255; measure without enough"):
            check_result(early, parse_gates(**gates))
    wanted = parse_gates(accuracy=0.9, robust_accuracy="linf@8/255:0.45")
    assert check_result(early, wanted) == check_result(margins, wanted)


def test_gates_allow_for_the_rounding_of_float32(run: Path) -> None:
    margins = Margins.load(run, norm="linf")
    for limit in ("enough", "within"):
        rounded = replace(
            margins, settings=margins.settings | {limit: float(np.nextafter(np.float32(0.1), 1 - (limit == "within")))}
        )
        (outcome,) = check_result(rounded, parse_gates(robust_accuracy="linf@0.1:0"))
        assert outcome.value == rounded.robust_accuracy(0.1)
    peer = replace(margins, distance=torch.full_like(margins.distance, 0.1 * (1 + 2.4e-7)))
    (outcome,) = check_result(peer, parse_gates(robust_accuracy="linf@0.1:0.9"))
    assert (outcome.value, outcome.passed) == (0, False)


TESTS = """
import marginattack as ma

def test_that_holds(check_margins):
    check_margins({run!r}, accuracy=0.9, median_margin="l2:0.5", robust_accuracy=["linf@8/255:0.45"])
    check_margins(ma.Margins.load({run!r}, norm="l2"), median_margin="l2:0.5", robust_accuracy="l2@1/2:0.9")

def test_that_fails(check_margins):
    check_margins({run!r}, median_margin="linf:1/2")
"""


def test_the_fixture_of_pytest_does_the_same(run: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.format(run=str(run)))
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=short"]
    arguments = [sys.executable, "-m", "pytest", *options, str(tmp_path)]  # the fixture comes by its entry point
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, "1 failed, 1 passed" in result.stdout) == (1, True), result.stdout
    assert "median margin in linf (marginattack): 0.1" in result.stdout
    code = "import sys, marginattack.pytest_plugin; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_margins_are_checked_by_name_of_their_norm(run: Path) -> None:
    from marginattack.report.gates import check_result, parse_gates

    margins = Margins.load(run, norm="linf")
    with pytest.raises(InputError, match="median margin in l2 cannot be checked: only linf was measured"):
        check_result(margins, parse_gates(median_margin="L2:0.5"))


def test_an_attack_within_a_radius_judges_nothing_beyond_it(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 40)
    edit(run, verified={"rows": 80, "failed": 0}, radii={"marginattack": 0.1})
    check = ["check", str(run), "--accuracy", "0.5", "--robust-accuracy"]
    assert RUNNER.invoke(app, [*check, "linf@0.1:0.01"]).exit_code == 0
    for gate in ("--robust-accuracy=linf@0.2:0.01", "--median-margin=linf:0.01"):
        result = RUNNER.invoke(app, ["check", str(run), gate])
        assert result.exit_code == 2
        assert "cannot be checked: an attack searched within 0.1 only; measure with race" in result.stderr
    text = RUNNER.invoke(app, ["report", str(run), "--text"]).stdout
    assert "8/255: " in text
    assert "0.3: " not in text
    assert "marginattack linf: within 0.1: distances are of points in that radius, not margins" in text
    assert "not margins" in repr(Margins.load(run, norm="Linf"))
