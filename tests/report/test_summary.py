"""Numbers of a report, compared with the rows that they come from."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from runs import made_up_run
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.errors import InputError
from marginattack.margins import Margins
from marginattack.report import write_report
from marginattack.report.axes import bin_numbers, fit_axis
from marginattack.report.datasets import build_view
from marginattack.report.page import render_page
from marginattack.report.series import read_runs
from marginattack.report.summary import (
    MAX_SUSPICIOUS,
    compare_classes,
    find_misclassified,
    find_unusual,
    summarize_classes,
)
from marginattack.storage.run_folder import RunFolder

pytest_plugins = ["report_fixtures"]


def test_numbers_match_margins_summary(real: Path) -> None:
    for series in read_runs([real]):
        expected = Margins.load(real, norm=series.part.norm).summary()
        assert series.accuracy == pytest.approx(expected["accuracy"])
        assert series.median == pytest.approx(expected["median"])
        assert series.passes == pytest.approx(expected["forwards"] + expected["backwards"])
        low, high = series.median_interval
        assert low < series.median < high


def test_curve_counts_robust_samples(tmp_path: Path) -> None:
    (series,) = read_runs([made_up_run(tmp_path / "run", 400, norms=("l2",))])
    view = build_view([series], fit_axis([series]), binned=False)
    curve = view.datasets["curve"].columns
    right, distance = series.columns["label"] == series.columns["prediction"], series.columns["distance"]
    assert len(curve["eps"]) <= 200
    assert curve["hits"] == [int((right & (distance > eps)).sum()) for eps in curve["eps"]]
    low, robust, high = (np.array(curve[name]) for name in ("low", "robust", "high"))
    assert ((low <= robust) & (robust <= high)).all()


def test_common_distances_are_on_the_curve(tmp_path: Path) -> None:
    group = read_runs([made_up_run(tmp_path / "run", 400, norms=("linf",))])
    levels = fit_axis(group).eps_grid()
    assert {0.0, 0.003922, 0.01569, 0.03137} <= set(levels.tolist())


def test_cells_keep_all_samples_and_their_bins(tmp_path: Path) -> None:
    (series,) = read_runs([made_up_run(tmp_path / "run", 5000, norms=("l2",))])
    fine, coarse = (build_view([series], fit_axis([series]), binned=binned) for binned in (False, True))
    rows, cells = (np.array(view.datasets["rows"].columns["d"]) for view in (fine, coarse))
    weight = np.array(coarse.datasets["rows"].columns["n"])
    assert weight.sum() == len(rows) > len(cells)
    width = fine.axis.bin_width
    counted = np.bincount(bin_numbers(rows, width))
    assert np.bincount(bin_numbers(cells, width), weight).tolist() == counted.tolist()


def test_a_mislabelled_sample_is_listed(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 500, norms=("l2",))
    (series,) = read_runs([run])
    rows = np.flatnonzero(series.found & (series.columns["label"] == 4))
    series.columns["distance"][rows[5]] = 0.01 * np.median(series.columns["distance"][rows])
    listed = find_unusual(series)
    assert listed[0][0] == rows[5]
    assert "0.01 of its class's median margin" in listed[0][1]
    wrong = [row for row, _ in find_misclassified(series)]
    confidence = series.columns["confidence"][wrong].tolist()
    assert confidence == sorted(confidence, reverse=True)
    assert 0 < len(wrong) <= MAX_SUSPICIOUS


def test_class_rows(tmp_path: Path) -> None:
    (series,) = read_runs([made_up_run(tmp_path / "run", 600, norms=("l2",), classes=["cat", "dog", "cat"])])
    rows = summarize_classes(series)
    assert [row.name for row in rows] == ["cat (0)", "dog", "cat (2)"]
    assert sum(row.n for row in rows) == series.correct
    for row in rows:
        mine = series.columns["distance"][series.measured & (series.columns["label"] == row.number)]
        assert row.median == pytest.approx(np.median(mine))
        assert row.low < row.median < row.high
        assert row.interval[0] < row.median < row.interval[1]
    extremes = compare_classes(rows)
    assert extremes is not None
    assert extremes["weakest"] == min(rows, key=lambda row: row.median)
    assert extremes["ratio"] == max(row.median for row in rows) / min(row.median for row in rows)
    (few,) = read_runs([made_up_run(tmp_path / "few", 40, norms=("l2",), classes=40)])
    assert compare_classes(summarize_classes(few)) is None  # one sample each


def test_not_found_counts_as_infinite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (series,) = read_runs([made_up_run(tmp_path / "run", 100, norms=("l2",))])
    series.columns["distance"][series.measured] = np.inf
    n = series.correct
    monkeypatch.setattr("marginattack.report.page.read_runs", lambda runs: [series])
    headline = f"For {n} of the {n} correctly classified samples, no adversarial example was found in ℓ2."
    assert headline in render_page([tmp_path])
    assert series.robust_accuracy(np.array([1e9]))[0].accuracy == series.accuracy
    assert series.not_found == n


def test_only_correct_runs_keep_their_accuracy(tmp_path: Path) -> None:
    store = RunFolder(made_up_run(tmp_path / "every", 100, norms=("l2",)))
    columns, images = store.numeric_columns(store.parts[0], 0), store.images(store.parts[0], 0)
    right = columns["label"] == columns["prediction"]
    kept = {name: column[right] for name, column in columns.items()}
    kept["input"] = [f"{i:016x}" for i in kept["id"].tolist()]  # type: ignore[assignment]
    images = {name: tensor[right] for name, tensor in images.items() if name != "id"}
    run = made_up_run(tmp_path / "run", 100, norms=("l2",), leave_out=1, identity={"only_correct": True})
    RunFolder(run).commit(store.parts[0], 0, kept, images, {"seen": 100, "right": int(right.sum())})
    (series,) = read_runs([run])
    assert series.accuracy == float(right.double().mean()) < 1
    assert series.robust_accuracy(np.zeros(1))[0].accuracy == series.accuracy


def test_targeted_runs_count_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (series,) = read_runs([made_up_run(tmp_path / "run", 100, norms=("l2",))])
    series.columns["target"][:] = 3
    assert len(series.margins) == series.total == 100
    monkeypatch.setattr("marginattack.report.page.read_runs", lambda runs: [series])
    assert "of their target class." in render_page([tmp_path])


def test_series_are_named_by_what_distinguishes_them(tmp_path: Path) -> None:
    one = made_up_run(tmp_path / "a", 30, model="plain")
    two = made_up_run(tmp_path / "b", 30, model="trained", attacks=("marginattack", "deepfool"))
    same = made_up_run(tmp_path / "c", 30, model="plain", seed=3)
    assert {series.name for series in read_runs([one])} == {"a"}  # the run, not its attack
    names = [series.name for series in read_runs([one, two]) if series.part.norm == "l2"]
    assert names == ["plain · marginattack", "trained · marginattack", "trained · deepfool"]
    assert len({(series.name, series.part.norm) for series in read_runs([one, two, same])}) == 8


def test_extreme_runs_are_reported(tmp_path: Path) -> None:
    """One sample; inputs that are not images; a thousand classes; ℓ0; large images."""
    for name, run in {
        "one": made_up_run(tmp_path / "one", 1, norms=("l2",)),
        "points": made_up_run(tmp_path / "points", 40, shape=(2,)),
        "classes": made_up_run(tmp_path / "classes", 3000, classes=1000, norms=("l0",), shape=(3, 4, 4)),
        "photographs": made_up_run(tmp_path / "photographs", 40, norms=("l2",), shape=(3, 200, 220)),
    }.items():
        text = render_page([run])
        assert "</html>" in text
        assert ('id="features"' in text) == (name == "points")
        assert ("The 20 weakest of 1,000 classes" in text) == (name == "classes")
        assert ("image/webp" in text) == (name == "photographs")
        assert "no margins to draw" not in text


def test_size_and_time(large: Path, tmp_path: Path) -> None:
    """10,000 samples: at most 2 MB without images, 3 MB with; CPU time of this process."""
    import time

    began = time.process_time()
    write_report([large], tmp_path / "with.html")
    assert time.process_time() - began < 5
    assert (tmp_path / "with.html").stat().st_size < 3_000_000
    without = tmp_path / "without"
    shutil.copytree(large, without, ignore=shutil.ignore_patterns("images"))
    write_report([without], tmp_path / "without.html")
    assert (tmp_path / "without.html").stat().st_size < 2_000_000
    assert "data:image" not in (tmp_path / "without.html").read_text()


def test_without_the_extra_text_is_printed_and_a_page_or_figures_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Path(__file__).parents[1] / "data/run-format-3"
    for name in ("figures", "charts", "page"):
        monkeypatch.delitem(sys.modules, f"marginattack.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    shown = CliRunner().invoke(app, ["report", str(run), "--text"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "median margin" in shown.stdout
    for option in ("--out", "--figures"):
        refused = CliRunner().invoke(app, ["report", str(run), option, str(tmp_path / "new")])
        assert refused.exit_code == 2
        assert refused.stderr == "marginattack: reports need altair: pip install 'marginattack[report]'\n"


def test_compare_prints_no_interval_of_few_samples_as_nan() -> None:
    run = str(Path(__file__).parents[1] / "data/run-format-3")
    text = CliRunner().invoke(app, ["compare", run, run, "--eps", "8/255"], env={"COLUMNS": "200"}).stdout
    assert "8/255: 100.0% → 100.0%" in text
    assert "[–, –]" in text
    assert "nan" not in text


def test_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("marginattack.report.REQUIRED", ("altair", "no_such_library"))
    with pytest.raises(InputError, match=r"reports need no_such_library: pip install 'marginattack\[report\]'$"):
        write_report([tmp_path], tmp_path / "report.html")
