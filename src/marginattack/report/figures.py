"""Figures and tables of runs as files for papers, from the same specs and numbers as the page."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marginattack.report.charts import Plot, plots_with_data
from marginattack.report.datasets import View, build_views
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.tables import build_tables, to_csv, to_latex
from marginattack.report.theme import vega_config
from marginattack.report.vega import vega_lite_version

WIDTH = 420  # of a single chart
SANS, SERIF = "sans-serif", "Times New Roman, Liberation Serif, Tinos, DejaVu Serif, serif"
POINTS = 72  # per inch
PANELS = ("curve", "histogram")  # of each norm
OVERLAID = ("curve", "curve-log", "paired")  # charts of several runs; the others show one
PANEL_HEIGHT, GAP, TEXT = 130, 14, 8  # points
LEGEND = {"orient": "top-right", "columns": 1, "labelLimit": 170, "symbolSize": 150}  # above the falling curves
WIDE = 5.0  # inches; wider figures have two panels per row


def render_figures(
    runs: Sequence[str | Path], eps: Sequence[float] = (), unit: float | int = 1, *, width: float | int = 6.75,
    serif: bool = False,
) -> Iterator[tuple[str, bytes]]:  # fmt: skip
    """Yield the name and the content of every file; the panels are ``width`` inches wide."""
    import vl_convert

    version, font = vega_lite_version(), SERIF if serif else SANS
    views = build_views(group_by_norm(read_runs(runs)), eps, unit)
    panels = _draw_panels(views, float(width), font)
    yield "panels.svg", panels.encode()
    yield "panels.pdf", vl_convert.svg_to_pdf(panels.replace('pt"', '"'))  # the unit of a PDF is the point
    for view in views:
        for plot in _choose_plots(view):
            spec, name = _complete_spec(plot, view, font), f"{plot.name}-{view.norm}"
            yield f"{name}.svg", vl_convert.vegalite_to_svg(spec, vl_version=version).encode()
            yield f"{name}.pdf", vl_convert.vegalite_to_pdf(spec, vl_version=version)
            yield f"{name}.png", vl_convert.vegalite_to_png(spec, vl_version=version, scale=3)
        for name, header, rows in build_tables(view):
            yield f"{name}-{view.norm}.csv", to_csv(header, rows, digits=6).encode()
            yield f"{name}-{view.norm}.tex", to_latex(header, rows).encode()


def describe_files(folder: Path, paths: Sequence[Path]) -> str:
    """Describe the written files in one line."""
    names = {path.name for path in paths}
    charts = sum(name.endswith(".png") for name in names)
    tables = sum(name.endswith(".tex") for name in names)
    return f"{folder}: panels.pdf, {charts} charts as SVG, PDF and PNG, {tables} tables as CSV and LaTeX"


def _choose_plots(view: View) -> list[Plot]:
    """Return the plots that have data; with several series, only those that show all of them."""
    return [plot for plot in plots_with_data(view) if len(view.group) == 1 or plot.name in OVERLAID]


def _complete_spec(plot: Plot, view: View, font: str) -> dict[str, Any]:
    """Return the spec of a plot with its data and a size and theme for paper."""
    spec, config = plot.to_spec(view), {**vega_config(font), "background": "white"}
    rows = {view.dataset_name(name): view.datasets[name].rows() for name in plot.datasets}
    width = spec["height"] if spec.get("usermeta", {}).get("square") else WIDTH
    return {**spec, "width": width, "config": config, "datasets": {**spec.get("datasets", {}), **rows}}


def _draw_panels(views: Sequence[View], width: float, font: str) -> str:
    """Draw the panels of all norms as one SVG, lettered, one or two per row."""
    import vl_convert

    columns = 2 if width >= WIDE else 1
    each = (width * POINTS - GAP * (columns - 1)) / columns
    drawn = []
    for view in views:
        for plot in (plot for plot in _choose_plots(view) if plot.name in PANELS):
            config = {**vega_config(font, TEXT), "padding": 1}
            config["legend"] = {**config["legend"], **LEGEND}
            spec = _complete_spec(plot, view, font) | {"config": config}
            size = {"width": each, "height": PANEL_HEIGHT, "autosize": {"type": "fit", "contains": "padding"}}
            drawn.append(vl_convert.vegalite_to_svg(spec | size, vl_version=vega_lite_version()))
    parts = []
    for number, svg in enumerate(drawn):
        x, y = (number % columns) * (each + GAP), (number // columns) * (PANEL_HEIGHT + GAP + TEXT)
        letter = f'<text x="{x}" y="{y + TEXT}" font-family="{font}" font-size="{TEXT + 1}">({chr(97 + number)})</text>'
        own = re.sub(r'(id="|url\(#)', rf"\g<1>p{number}-", svg)  # the panels must not share clip paths
        own = own.replace('stroke-width="2"', 'stroke-width="1.2"')
        parts += [letter, own.replace("<svg ", f'<svg x="{x}" y="{y + TEXT + 2}" ', 1)]
    rows = -(-len(drawn) // columns)
    height = rows * (PANEL_HEIGHT + GAP + TEXT)
    size_ = f'width="{width * POINTS:g}pt" height="{height}pt" viewBox="0 0 {width * POINTS:g} {height}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size_}>{background}{"".join(parts)}</svg>'
