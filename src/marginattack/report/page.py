"""The page: stored runs as one self-contained HTML file."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marginattack._version import __version__
from marginattack.report.charts import PLOTS, plots_with_data
from marginattack.report.datasets import MAX_CLASSES, Dataset, View, build_views
from marginattack.report.provenance import describe_runs
from marginattack.report.sections import collect_findings, compare_with_first, describe_view
from marginattack.report.series import Series, group_by_norm, read_runs
from marginattack.report.summary import write_headline
from marginattack.report.theme import THEMES, vega_config
from marginattack.report.vega import bundle_in_background

FOLDER = Path(__file__).parent


def render_page(runs: Sequence[str | Path], unit: float | int = 1) -> str:
    """Render the page about some runs; ``unit`` is the one that it shows first."""
    every = read_runs(runs)
    with bundle_in_background() as wait_for_bundle:
        groups = group_by_norm(every)
        views = build_views(groups)
        page: str = _load_template().render(
            title=_write_title(every), runs=describe_runs(every), several=len(every) > len(groups), unit=unit,
            series=every, findings=collect_findings(every), num=_distance_formatter(unit), headline=write_headline,
            panels=[describe_view(view) for view in views], max_classes=MAX_CLASSES, version=__version__,
            comparisons=[comparison for view in views for comparison in compare_with_first(view)],
            classes=list(dict.fromkeys(name for view in views for name in view.shown)),
            names=list(dict.fromkeys(series.name for series in every)), style=(FOLDER / "page.css").read_text(),
            data=_embed_json(_collect_data(views, unit)), library=wait_for_bundle(),
            script=(FOLDER / "page.js").read_text(),
        )  # fmt: skip
    return page


def _load_template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _format_percent, "short": _format_short}
    return environment.get_template("page.html.j2")


def _format_short(value: float | int | None) -> str:
    """Format with four significant digits; an infinite distance is one that was not found."""
    if value is None or np.isnan(value):
        return "–"
    return "not found" if np.isinf(value) else f"{value:.4g}"


def _format_percent(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def _distance_formatter(unit: float | int) -> Callable[..., Any]:
    """Return a formatter of distances that keeps the value in the markup, so that the script can change the unit."""
    from markupsafe import Markup

    def format_distance(value: float | int | None, norm: str) -> Any:
        if norm == "l0" or value is None or not np.isfinite(value):
            return _format_short(value)
        return Markup('<span class="num" data-v="{}">{}</span>').format(f"{value:.6g}", _format_short(value * unit))

    return format_distance


def _embed_json(tree: Any) -> str:
    """Serialize to JSON that cannot end the script element that it is embedded in."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _write_title(every: Sequence[Series]) -> str:
    def enumerate_names(key: str) -> str:
        names = list(dict.fromkeys(series.store.manifest[key]["name"] for series in every))
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    return f"{enumerate_names('model')} on {enumerate_names('data')}"


def _collect_data(views: Sequence[View], unit: float | int) -> dict[str, Any]:
    """Collect what the page's script needs: specs without data, each dataset once, and the themes."""
    sizing = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {
        "unit": unit, "config": {theme: vega_config(theme) for theme in THEMES},
        "specs": {view.norm: {plot.name: plot.to_spec(view) | sizing for plot in plots_with_data(view)}
                  for view in views},
        "datasets": {view.dataset_name(name): _pack(data) for view in views for name, data in view.datasets.items()},
        "uses": {plot.name: plot.datasets for plot in PLOTS},
        "measured": {view.norm: {series.name: len(series.margins) for series in view.group} for view in views},
    }  # fmt: skip


def _pack(data: Dataset) -> dict[str, Any]:
    """Pack columns; a constant column becomes its value."""
    columns = {name: values[0] if len(set(values)) == 1 else values for name, values in data.columns.items()}
    names = {name: data.names[name] for name in data.names if name in columns}
    return {"length": len(next(iter(data.columns.values()))), "columns": columns, "names": names}
