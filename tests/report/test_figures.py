"""Charts are valid and readable without colour; figures and tables are files that other programs read."""

import csv
import xml.etree.ElementTree as ElementTree
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from runs import made_up_run

from marginattack.report import write_figures
from marginattack.report.charts import PLOTS, plots_with_data
from marginattack.report.datasets import build_views
from marginattack.report.figures import render_figures
from marginattack.report.numbers import choose_levels, format_beside, format_distance, format_number
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.tables import to_latex
from marginattack.report.theme import DASHES, GREY, PALETTE, THEMES
from marginattack.report.trace_charts import MOVES
from marginattack.report.vega import vega_lite_version

pytest_plugins = ["report_fixtures"]


def test_specs_are_valid(real: Path) -> None:
    import vl_convert

    (view, *_) = build_views(group_by_norm(read_runs([real])))
    for plot in PLOTS:
        assert (plot in plots_with_data(view)) == (plot.name != "paired")
        plot.to_spec(view, validate=True)
        spec = {
            **plot.to_spec(view),
            "datasets": {view.dataset_name(name): view.datasets[name].rows() for name in plot.datasets},
        }
        assert vl_convert.vegalite_to_vega(spec, vl_version=vega_lite_version())["marks"]


def test_names_are_data_and_never_expressions(tmp_path: Path) -> None:
    """In a spec, names of classes and models are only in domains of scales and values of parameters."""
    name = "'] + alert(1) + ['"
    run = made_up_run(tmp_path / "run", 200, classes=[name, "b", "c"], model=name)
    for view in build_views(group_by_norm(read_runs([run]))):
        for plot in PLOTS:
            spec = plot.to_spec(view)
            found = [where for where in _strings(spec) if name in where[1]]
            assert all(path[-2] in ("domain", "params") or path[-1] == "value" for path, _ in found), found


def _strings(tree: object, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], str]]:
    if isinstance(tree, str):
        return [(path, tree)]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else []
    return [found for key, value in items for found in _strings(value, (*path, key))]


def test_colours_have_contrast_in_both_themes_and_series_differ_in_more_than_colour() -> None:
    """With opacity: test_page_layout."""
    for theme in THEMES.values():
        for colour in (*PALETTE, GREY):
            assert contrast(colour, theme[3]) >= 3, (colour, theme)
        assert contrast(theme[0], theme[3]) >= 7
        assert contrast(theme[1], theme[3]) >= 4.5
    assert len({str(dash) for dash in DASHES}) == len(DASHES) == len(PALETTE)
    assert len({shape for shape, _ in MOVES.values()}) == len(MOVES)


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("figures")
    run = made_up_run(folder / "run", 200, norms=("l2",), classes=["50 % & more_", "b$", "c"])
    return {path.name: path.read_bytes() for path in write_figures(run, folder / "out")}


def test_figures_have_the_format_of_their_suffix(written: dict[str, bytes]) -> None:
    kinds = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}
    plots = [plot.name for plot in PLOTS if not {"trace", "paired"} & {*plot.datasets}]  # one run, without traces
    for plot in plots:
        for kind, start in kinds.items():
            assert written[f"{plot}-l2.{kind}"].startswith(start)
        svg = ElementTree.fromstring(written[f"{plot}-l2.svg"])
        assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 5
    tables = {f"{p}-l2" for p in (*plots, "numbers", "classes")}
    assert {name.rpartition(".")[0] for name in written} == {*tables, "panels"}


@pytest.mark.parametrize(("width", "serif", "box"), [(6.75, False, b"[0 0 486 152]"), (3.25, True, b"[0 0 234 304]")])
def test_panels_have_the_width_of_a_page_or_a_column(tmp_path: Path, width: float, serif: bool, box: bytes) -> None:
    run = made_up_run(tmp_path / "run", 50, norms=("l2",))
    files = dict(islice(render_figures([run], width=width, serif=serif), 2))
    assert b"/MediaBox " + box in files["panels.pdf"]
    svg = files["panels.svg"].decode()
    assert "(a)" in svg
    assert "(b)" in svg
    assert ("Times New Roman" in svg) == serif


def test_several_runs_are_overlaid(tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / name, 60, norms=("l2",), model=name, seed=seed) for seed, name in enumerate("ab")]
    written = {path.name: path.read_bytes() for path in write_figures(runs, tmp_path / "out")}
    assert {name for name in written if name.endswith(".svg")} == {
        "panels.svg", "curve-l2.svg", "curve-log-l2.svg", "paired-l2.svg",
    }  # fmt: skip
    panels = written["panels.svg"].decode()
    assert "(a)" in panels
    assert "(b)" not in panels  # one norm, robust accuracy
    assert all(f">{name}</text>" in panels for name in "ab")  # in the legend
    assert [row["run"] for row in csv.DictReader(written["numbers-l2.csv"].decode().splitlines())] == ["a", "b"]
    beyond = dict(islice(render_figures(runs, eps=[99.0]), 1))["panels.svg"].decode()
    assert "ε = 99" not in beyond  # an ε beyond the axis has no label, which would squeeze the panel
    square = ElementTree.fromstring(written["paired-l2.svg"])
    (frame,) = [e for e in square.iter() if "root" in e.get("class", "") and "role-frame" in e.get("class", "")]
    background = next(e for e in frame.iter() if e.get("class") == "background")
    assert background.get("d") == "M0,0h400v400h-400Z"  # a diagonal of 45°


def test_numbers_have_no_exponents() -> None:
    numbers = {0.00007814: "0.00007814", 1e-15: "< 0.000001", 12345.6: "12,346", 0.1659: "0.1659", 1.0: "1", 0.0: "0",
               -0.25: "−0.25", 999.96: "1000", float("inf"): "not found", float("nan"): "–"}  # fmt: skip
    assert {value: format_number(value) for value in numbers if value == value} == {
        value: text for value, text in numbers.items() if value == value
    }
    assert format_distance(8 / 255) == "8/255"  # typed so, in any norm
    assert format_distance(0.2) == "0.2"
    assert format_distance(12 * 0.05) == "0.6"  # not 153/255, which it is but for rounding
    assert format_distance(0.0007, pixels=True) == "0.178/255"
    assert format_distance(8 / 255, pixels=True, scale=255) == "8"
    assert [format_number(end, like=1.323) for end in (1.21, 1.323)] == ["1.210", "1.323"]  # ends of an interval
    assert [format_distance(k / 255, pixels=True, like=10.4 / 255) for k in (9.52, 10.4)] == ["9.5/255", "10.4/255"]
    assert format_number(0.0001, like=1.323) == "0.0001"  # never rounded to 0
    assert [format_beside(value, 12.3) for value in (0.0000162, -0.0000162, 0.25)] == ["< 0.001", "> −0.001", "0.25"]
    assert format_beside(0.0000162, 0.00002) == "0.0000162"  # a column of small numbers
    assert r"$<10^{-6}$ & $-$0.5 & 12\,346" in to_latex(("a", "b", "c"), [(1e-15, -0.5, 12345.6)])


def test_default_levels_come_from_the_margins() -> None:
    margins = np.geomspace(0.0001, 0.004, 200)
    levels = choose_levels(margins, pixels=True)
    assert levels == [0.05 / 255, 0.2 / 255, 0.5 / 255]
    shares = [(100 * margins > level).mean() for level in choose_levels(100 * margins)]
    assert 0.8 < shares[0] < 1
    assert 0 < shares[-1] < 0.2
    assert choose_levels(np.array([np.inf, 0.0])) == []


def test_tables(written: dict[str, bytes]) -> None:
    rows = list(csv.DictReader(written["classes-l2.csv"].decode().splitlines()))
    assert [row["class"] for row in rows] == ["50 % & more_", "b$", "c"]
    assert all(float(row["lower quartile"]) < float(row["median margin"]) for row in rows)
    text = written["classes-l2.tex"].decode()
    assert r"50 \% \& more\_" in text
    assert r"b\$" in text
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in lines} == {7}
    assert text.startswith(r"\begin{tabular}{llrrrrrl}")
