"""The numbers of a report, held against the rows they come from."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from runs import made_up_run

from marginattack.errors import InputError
from marginattack.margins import Margins
from marginattack.report import datasets, summary, write_report
from marginattack.report.page import page
from marginattack.report.panels import numbers
from marginattack.storage.run_folder import RunFolder

pytest_plugins = ["report_fixtures"]


def test_numbers_are_those_of_margins(real: Path) -> None:
    for series in summary.read([real]):
        told = Margins.load(series.store.path, norm=series.part.norm, attack=series.part.attack).summary()
        assert series.accuracy == pytest.approx(told["accuracy"])
        assert series.median == pytest.approx(told["median"])
        assert series.passes == pytest.approx(told["forwards"] + told["backwards"])
        low, high = series.median_interval
        assert low < series.median < high


def test_curve_counts_the_samples_that_hold(tmp_path: Path) -> None:
    (series,) = summary.read([made_up_run(tmp_path / "run", 400, norms=("l2",))])
    view = datasets.view("l2", [series], binned=False)
    curve = view.datasets["curve"].columns
    right, distance = series.columns["label"] == series.columns["prediction"], series.columns["distance"]
    assert len(curve["eps"]) <= 200
    assert curve["hits"] == [int((right & (distance > eps)).sum()) for eps in curve["eps"]]
    assert all(
        low <= value <= high for low, value, high in zip(curve["low"], curve["robust"], curve["high"], strict=True)
    )


def test_usual_distances_are_on_the_curve(tmp_path: Path) -> None:
    group = summary.read([made_up_run(tmp_path / "run", 400, norms=("linf",))])
    levels = summary.grid(group)
    assert {0.0, 0.05, 0.1, 0.03137} <= set(levels.tolist())


def test_cells_lose_no_sample_and_keep_the_bins(tmp_path: Path) -> None:
    (series,) = summary.read([made_up_run(tmp_path / "run", 5000, norms=("l2",))])
    fine, coarse = (datasets.view("l2", [series], binned=binned) for binned in (False, True))
    rows, cells = (np.array(view.datasets["rows"].columns["d"]) for view in (fine, coarse))
    weight = np.array(coarse.datasets["rows"].columns["n"])
    assert weight.sum() == len(rows) > len(cells)
    step = fine.step
    counted = np.bincount(datasets.bins(rows, step))
    assert np.bincount(datasets.bins(cells, step), weight).tolist() == counted.tolist()


def test_a_mislabelled_sample_is_listed(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 500, norms=("l2",))
    (series,) = summary.read([run])
    rows = np.flatnonzero(series.found & (series.columns["label"] == 4))
    series.columns["distance"][rows[5]] = 0.01 * np.median(series.columns["distance"][rows])
    listed = summary.suspects(series)
    assert listed[0].row == rows[5]
    assert "0.01 of its class's median margin" in listed[0].why
    wrong = [each for each in listed if each.why.startswith("misclassified")]
    confidence = [series.columns["confidence"][each.row] for each in wrong]
    assert confidence == sorted(confidence, reverse=True)
    assert len(listed) <= summary.LISTED


def test_class_rows(tmp_path: Path) -> None:
    (series,) = summary.read([made_up_run(tmp_path / "run", 600, norms=("l2",), classes=["cat", "dog", "cat"])])
    rows = summary.class_rows(series)
    assert [row.name for row in rows] == ["cat (0)", "dog", "cat (2)"]
    assert sum(row.n for row in rows) == series.right
    for row in rows:
        mine = series.columns["distance"][series.held & (series.columns["label"] == row.number)]
        assert row.median == pytest.approx(np.median(mine))
        assert row.low < row.median < row.high


def test_what_is_not_found_is_infinite(tmp_path: Path) -> None:
    (series,) = summary.read([made_up_run(tmp_path / "run", 100, norms=("l2",))])
    series.columns["distance"][series.held] = np.inf
    assert summary.sentence(series)[0].startswith(f"For {series.right} of the {series.right} samples")  # type: ignore[union-attr]
    assert series.robust(1e9) == series.accuracy
    assert numbers(series)["missed"] == series.right


def test_only_correct_runs_keep_their_accuracy(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 100, norms=("l2",))
    store = RunFolder(run)
    columns, images = store.numeric_columns(store.parts[0], 0), store.images(store.parts[0], 0)
    right = columns["label"] == columns["prediction"]
    kept = {name: column[right] for name, column in columns.items()}
    kept["input"] = [f"{i:016x}" for i in kept["id"].tolist()]  # type: ignore[assignment]
    images = {name: tensor[right] for name, tensor in images.items() if name != "id"}
    store.commit(store.parts[0], 0, kept, images, {"seen": 100, "right": int(right.sum())})
    (series,) = summary.read([run])
    assert series.accuracy == series.robust(0.0) == float(right.double().mean()) < 1


def test_targeted_runs_count_every_sample(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 100, norms=("l2",))
    (series,) = summary.read([run])
    series.columns["target"][:] = 3
    assert len(series.margins) == series.total == 100
    assert "of their target class" in str(summary.sentence(series)[-1])


def test_series_are_named_by_what_differs(tmp_path: Path) -> None:
    one = made_up_run(tmp_path / "a", 30, model="plain")
    two = made_up_run(tmp_path / "b", 30, model="trained", attacks=("marginattack", "deepfool"))
    same = made_up_run(tmp_path / "c", 30, model="plain", seed=3)
    assert {series.name for series in summary.read([one])} == {"marginattack"}
    names = [series.name for series in summary.read([one, two]) if series.part.norm == "l2"]
    assert names == ["plain · marginattack", "trained · marginattack", "trained · deepfool"]
    assert len({(series.name, series.part.norm) for series in summary.read([one, two, same])}) == 8


def test_extreme_runs_are_reported(tmp_path: Path) -> None:
    """One sample; inputs that are no images; a thousand classes; ℓ0."""
    for name, run in {
        "one": made_up_run(tmp_path / "one", 1, norms=("l2",)),
        "points": made_up_run(tmp_path / "points", 40, shape=(2,)),
        "classes": made_up_run(tmp_path / "classes", 3000, classes=1000, norms=("l0",), shape=(3, 4, 4)),
        "photographs": made_up_run(tmp_path / "photographs", 40, norms=("l2",), shape=(3, 200, 220)),
    }.items():
        text = page([run])
        assert "</html>" in text
        assert ("holds no images that can be shown" in text) == (name == "points")
        assert ("charts show the 30" in text) == (name == "classes")
        assert ("image/jpeg" in text) == (name == "photographs")


def test_size_and_time(large: Path, tmp_path: Path) -> None:
    """10,000 samples: below 2 MB without images, 5 with; the time is this process's own."""
    import time

    began = time.process_time()
    write_report([large], tmp_path / "with.html")
    assert time.process_time() - began < 5
    assert (tmp_path / "with.html").stat().st_size < 5_000_000
    without = tmp_path / "without"
    shutil.copytree(large, without, ignore=shutil.ignore_patterns("images"))
    write_report([without], tmp_path / "without.html")
    assert (tmp_path / "without.html").stat().st_size < 2_000_000
    assert "data:image" not in (tmp_path / "without.html").read_text()


def test_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("marginattack.report.NEEDED", ("altair", "no_such_library"))
    with pytest.raises(InputError, match=r"reports need no_such_library: pip install 'marginattack\[report\]'$"):
        write_report([tmp_path], tmp_path / "report.html")
