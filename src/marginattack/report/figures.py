"""Figures and tables of a run as files for papers, from the same specs and numbers as the page."""

from collections.abc import Iterator
from pathlib import Path

from marginattack.report.charts import Plot, plots_with_data
from marginattack.report.datasets import View, build_views
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.tables import build_tables, to_csv, to_latex
from marginattack.report.theme import vega_config
from marginattack.report.vega import vega_lite_version

WIDTH = 420


def render_figures(run: str | Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of every file."""
    for view in build_views(group_by_norm(read_runs([run]))):
        for plot in plots_with_data(view):
            yield from _render_plot(view, plot)
        for name, header, rows in build_tables(view):
            yield f"{name}-{view.norm}.csv", to_csv(header, rows, digits=6).encode()
            yield f"{name}-{view.norm}.tex", to_latex(header, rows).encode()


def _render_plot(view: View, plot: Plot) -> Iterator[tuple[str, bytes]]:
    import vl_convert

    spec, version, name = plot.to_spec(view), vega_lite_version(), f"{plot.name}-{view.norm}"
    rows = {view.dataset_name(name): view.datasets[name].rows() for name in plot.datasets}
    spec |= {"width": WIDTH, "config": {**vega_config("light", "sans-serif"), "background": "white"},
             "datasets": {**spec.get("datasets", {}), **rows}}  # fmt: skip
    yield f"{name}.svg", vl_convert.vegalite_to_svg(spec, vl_version=version).encode()
    yield f"{name}.pdf", vl_convert.vegalite_to_pdf(spec, vl_version=version)
    yield f"{name}.png", vl_convert.vegalite_to_png(spec, vl_version=version, scale=3)
