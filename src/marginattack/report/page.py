"""The page: stored runs as one self-contained HTML file."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from marginattack._version import __version__
from marginattack.errors import redact
from marginattack.report.brackets import HOW_TO_READ
from marginattack.report.charts import PLOTS, plots_with_data
from marginattack.report.comparison import compare_series
from marginattack.report.datasets import MAX_CLASSES, Dataset, View, build_views
from marginattack.report.sections import collect_findings, describe_runs, describe_view
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.theme import THEMES, vega_config
from marginattack.report.vega import bundle_script

FOLDER = Path(__file__).parent


def render_page(runs: Sequence[str | Path], eps: Sequence[float] = (), unit: float | int = 1) -> str:
    """Render the page about some runs; ``unit`` is the one that it shows first, and that ``eps`` is in."""
    series = read_runs(runs)
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(bundle_script)
        stores = list({str(each.store.path): each.store for each in series}.values())
        groups = group_by_norm(series)
        views = build_views(groups, eps, unit)
        return str(_load_template().render(
            series=series, several=len(series) > len(groups), views=views, compare=compare_series, unit=unit,
            panels=[describe_view(view) for view in views], runs=describe_runs(stores), max_classes=MAX_CLASSES,
            findings=collect_findings(stores), version=__version__, style=(FOLDER / "page.css").read_text("utf-8"),
            how_to_read=HOW_TO_READ,
            data=_embed_json(_collect_data(views, unit)), library=library.result(),
            script=(FOLDER / "page.js").read_text("utf-8"),
        ))  # fmt: skip


def _load_template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, **options)
    environment.filters |= {"percent": _format_percent, "short": _format_short, "redact": redact}
    return environment.get_template("page.html.j2")


def _format_short(value: float | int | None) -> str:
    """Format with four significant digits; an infinite distance is one that was not found."""
    if value is None or np.isnan(value):
        return "–"
    return "not found" if np.isinf(value) else f"{value:.4g}"


def _format_percent(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def _embed_json(tree: Any) -> str:
    """Serialize to JSON that cannot end the script element that it is embedded in."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _collect_data(views: Sequence[View], unit: float | int) -> dict[str, Any]:
    """Collect what the page's script needs: specs without data, each dataset once, and the themes."""
    sizing = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {
        "unit": unit, "config": {theme: vega_config(theme) for theme in THEMES},
        "specs": {view.norm: {plot.name: plot.to_spec(view) | sizing for plot in plots_with_data(view)}
                  for view in views},
        "datasets": {view.dataset_name(name): _pack(data) for view in views for name, data in view.datasets.items()},
        "uses": {plot.name: plot.datasets for plot in PLOTS},
        "pin": {view.norm: view.axis.eps[0] for view in views if view.axis.eps},
        "measured": {view.norm: {series.name: len(series.margins) for series in view.group} for view in views},
    }  # fmt: skip


def _pack(data: Dataset) -> dict[str, Any]:
    """Pack columns; a constant column becomes its value."""
    columns = {name: values[0] if len(set(values)) == 1 else values for name, values in data.columns.items()}
    names = {name: data.names[name] for name in data.names if name in columns}
    return {"length": len(next(iter(data.columns.values()))), "columns": columns, "names": names}
