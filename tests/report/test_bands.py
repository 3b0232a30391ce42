"""Both sides of the margins in reports: bands, closed brackets and the widest ones."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import made_up_run

from marginattack.cli.common import dump_json
from marginattack.margins import Margins
from marginattack.report.charts import PLOTS
from marginattack.report.datasets import build_views
from marginattack.report.page import render_page
from marginattack.report.series import Series, group_by_norm, read_runs
from marginattack.report.tables import build_tables, to_csv
from marginattack.report.text import format_run, summarize_run
from marginattack.storage.bounds import begin_bounds, commit_bounds, end_bounds
from marginattack.storage.run_folder import RunFolder

SETTINGS = {"method": "crown", "time_limit": None, "radius": None, "restarts": 0}
NAN = float("nan")


def add_bounds(run: Path, *, leave_out: int = 0) -> Path:
    """Bound random shares of the margins; the first sample of each shard gets a nearer point, at half its distance."""
    folder, draws = RunFolder(run), np.random.default_rng(0)
    begin_bounds(folder, SETTINGS)
    for shard, part in folder.finished()[: len(folder.finished()) - leave_out]:
        table = folder.read(part, shard)
        distance, n = table.column("distance").to_numpy().copy(), len(table)
        row = int(np.flatnonzero(np.isfinite(distance) & (distance > 0))[0])
        distance[row] /= 2
        lower = np.where(np.isfinite(distance), distance * draws.choice([0.0, 0.3, 0.95, 0.995], n), 0.0)
        columns = {
            "id": table.column("id").to_numpy(), "lower": lower, "upper": distance,
            "certified_by": np.where(lower > 0, "crown", "").tolist(), "kkt": draws.random(n),
            "adversarial_label": table.column("adversarial_label").to_numpy(), "estimate": np.full(n, NAN),
            "spread": np.full(n, NAN),
            "adversarial": torch.zeros(n, *folder.manifest["data"]["shape"]),
        }  # fmt: skip
        commit_bounds(folder, part, shard, table, columns, SETTINGS)
    end_bounds(folder)
    return run


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three shards, of which the last has no bounds."""
    run = made_up_run(tmp_path_factory.mktemp("bounded") / "run", 300, norms=("l2",), shard=100)
    return add_bounds(run, leave_out=1)


@pytest.fixture(scope="module")
def series(bounded: Path) -> Series:
    (series,) = read_runs([bounded])
    return series


def test_margins_and_reports_read_the_same(bounded: Path, series: Series) -> None:
    margins = Margins.load(bounded)
    assert margins.distance.tolist() == series.columns["distance"].tolist()
    assert margins.lower.tolist() == series.columns["lower"].tolist()
    assert float(margins.lower[200:].max()) == 0  # where there are no bounds
    attacked = RunFolder(bounded).table(["distance"]).column("distance").to_numpy()
    assert int((margins.distance.numpy() < attacked).sum()) == 2
    assert float(margins.adversarial[0].abs().max()) == 0  # the nearer point
    levels = [0.0, 0.1, 0.5, 1.0, 2.0]
    assert series.certified_accuracy(np.array(levels)) == margins.certified_accuracy(levels)


def test_certified_shares_are_below_robust_ones(bounded: Path, series: Series) -> None:
    run = json.loads(dump_json(summarize_run(RunFolder(bounded))))
    part = run["parts"][0]
    assert all(0 < level["certified"] <= level["accuracy"] for level in part["robust"][:2])
    bounds, margins = part["bounds"], Margins.load(bounded)
    right = margins.prediction == margins.label
    assert bounds["closed"]["0.01"] == int((margins.closed & right).sum()) > 0
    assert bounds["certified"] == int((margins.lower > 0).sum())
    assert 0 < bounds["closed"]["0.01"] < bounds["closed"]["0.1"] < bounds["measured"]
    width = (margins.distance - margins.lower)[right]
    assert [each["upper"] - each["lower"] if each["upper"] else None for each in bounds["widest"]] == (
        [None if np.isinf(each) else pytest.approx(each) for each in sorted(width.tolist(), reverse=True)[:10]]
    )
    text = "\n".join(str(line) for line in format_run(RunFolder(bounded)) if isinstance(line, str))
    assert "l2: widest brackets: samples" in text
    assert "KKT residual: how much nearer the tangent plane" in text
    assert "Bounds are missing for 100 of 300 margins and count as 0. Resume: marginattack bound " in text
    scaled = summarize_run(RunFolder(bounded), unit=255)["parts"][0]
    assert scaled["bounds"]["median_lower"] == pytest.approx(255 * bounds["median_lower"])
    assert [level["certified"] for level in scaled["robust"]] == [level["certified"] for level in part["robust"]]


def test_tables(bounded: Path, series: Series) -> None:
    (view,) = build_views(group_by_norm(read_runs([bounded])))
    tables = {name: [*csv.DictReader(io.StringIO(to_csv(header, rows)))] for name, header, rows in build_tables(view)}
    for row in tables["curve"]:
        assert float(row["certified accuracy, %"]) <= float(row["robust accuracy, %"])
    (numbers,) = tables["brackets"]
    assert numbers["method"] == "crown"
    sides = zip(series.columns["lower"], series.columns["distance"], strict=True)
    assert int(numbers["closed to 1%"]) == sum(low >= 0.99 * high > 0 for low, high in sides)
    assert len(tables["widest"]) == 10


def test_charts_and_pages_with_and_without_bounds(bounded: Path, tmp_path: Path) -> None:
    (view,) = build_views(group_by_norm(read_runs([bounded])))
    curve = next(plot for plot in PLOTS if plot.name == "curve").to_spec(view, validate=True)
    areas = [layer["encoding"]["y"]["field"] for layer in curve["layer"] if layer["mark"].get("type") == "area"]
    assert areas == ["certified", "certified", "robust"]  # certified, unknown, attacked
    plain = made_up_run(tmp_path / "plain", 100, norms=("l2",), seed=1)
    page = render_page([bounded])
    assert 'id="brackets"' in page
    assert "Show the widest brackets" in page
    assert 'id="brackets"' not in render_page([plain])
    both = build_views(group_by_norm(read_runs([bounded, plain])))[0].datasets["curve"].columns
    assert [value is None for value in both["certified"]] == [number == 1 for number in both["series"]]
    assert "; certified " in render_page([bounded, plain])
