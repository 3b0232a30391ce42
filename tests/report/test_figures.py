"""Charts are valid and readable without colour; figures and tables are files that other programs read."""

import csv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from runs import made_up_run

from marginattack.report import write_figures
from marginattack.report.charts import MOVES, PLOTS, plots_with_data
from marginattack.report.datasets import build_views
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.theme import DASHES, GREY, PALETTE, THEMES
from marginattack.report.vega import vega_lite_version

pytest_plugins = ["report_fixtures"]


def test_specs_are_valid(real: Path) -> None:
    import vl_convert

    (view, *_) = build_views(group_by_norm(read_runs([real])))
    for plot in PLOTS:
        assert plot in plots_with_data(view)
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
    plots = [plot.name for plot in PLOTS if "trace" not in plot.datasets]  # this run has no traces
    for plot in plots:
        for kind, start in kinds.items():
            assert written[f"{plot}-l2.{kind}"].startswith(start)
        svg = ElementTree.fromstring(written[f"{plot}-l2.svg"])
        assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 5
    assert {name.rpartition(".")[0] for name in written} == {f"{p}-l2" for p in (*plots, "numbers", "classes")}


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
