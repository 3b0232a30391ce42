"""Figures and tables of a run as files for papers, from the same specs and numbers as the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marginattack.report.charts import Plot, plots_with_data
from marginattack.report.datasets import View, build_views
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.tables import build_tables, to_csv, to_latex
from marginattack.report.theme import vega_config
from marginattack.report.vega import vega_lite_version

WIDTH = 420


def render_figures(run: str | Path, eps: Sequence[float] = (), unit: float | int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of every file."""
    import vl_convert

    version = vega_lite_version()
    for view in build_views(group_by_norm(read_runs([run])), eps, unit):
        for plot in plots_with_data(view):
            spec, name = _complete_spec(plot, view), f"{plot.name}-{view.norm}"
            yield f"{name}.svg", vl_convert.vegalite_to_svg(spec, vl_version=version).encode()
            yield f"{name}.pdf", vl_convert.vegalite_to_pdf(spec, vl_version=version)
            yield f"{name}.png", vl_convert.vegalite_to_png(spec, vl_version=version, scale=3)
        for name, header, rows in build_tables(view):
            yield f"{name}-{view.norm}.csv", to_csv(header, rows, digits=6).encode()
            yield f"{name}-{view.norm}.tex", to_latex(header, rows).encode()


def _complete_spec(plot: Plot, view: View) -> dict[str, Any]:
    """Return the spec of a plot with its data and a size and theme for paper."""
    spec, config = plot.to_spec(view), {**vega_config("light", "sans-serif"), "background": "white"}
    rows = {view.dataset_name(name): view.datasets[name].rows() for name in plot.datasets}
    return {**spec, "width": WIDTH, "config": config, "datasets": {**spec.get("datasets", {}), **rows}}
