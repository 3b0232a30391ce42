"""The page: stored runs as one self-contained HTML file."""

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from marginattack._version import __version__
from marginattack.errors import redact
from marginattack.report import numbers
from marginattack.report.brackets import HOW_TO_READ
from marginattack.report.charts import PLOTS, plots_with_data
from marginattack.report.datasets import MAX_CLASSES, WEAKEST, Dataset, View, build_views
from marginattack.report.sections import collect_findings, describe_runs, describe_view, name_samples
from marginattack.report.series import Series, group_by_norm, read_runs
from marginattack.report.theme import NAMES, THEMES, vega_config
from marginattack.report.vega import bundle_script
from marginattack.runs.levels import Level

FOLDER = Path(__file__).parent / "templates"
MAX_NAME = 20  # characters of a class name; longer ones are cut at the first comma


def render_page(runs: Sequence[str | Path], eps: Sequence[float] = (), unit: float | int = 1) -> str:
    """Render the page about some runs; ``unit`` is that of ``eps``, and initially that of the page."""
    series = read_runs(runs)
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(bundle_script)
        stores = list({str(each.store.path): each.store for each in series}.values())
        groups = group_by_norm(series)
        views = build_views(groups, eps, unit)
        panels = [describe_view(view) for view in views]
        traced = sorted({row["id"] for panel in panels for row in panel["traces"]})
        return str(_load_template(views, unit).render(
            series=series, several=len(series) > len(groups), views=views, unit=unit, panels=panels,
            runs=describe_runs(stores), max_classes=MAX_CLASSES, weakest=WEAKEST,
            findings=collect_findings(stores), version=__version__, style=(FOLDER / "page.css").read_text("utf-8"),
            how_to_read=HOW_TO_READ, sample_names=name_samples(series, traced),
            data=_embed_json(_collect_data(views, panels, unit)), library=library.result(),
            script=(FOLDER / "page.js").read_text("utf-8"), lightbox=(FOLDER / "lightbox.js").read_text("utf-8"),
        ))  # fmt: skip


def _load_template(views: Sequence[View], unit: float | int) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pixels = {view.norm: view.axis.pixels for view in views}

    def format_distance(value: float | int | None, norm: str, like: float | None = None) -> str:
        scale = 1 if norm == "l0" else unit
        if isinstance(value, Level):
            return value.text
        return numbers.format_distance(value, pixels=pixels[norm] and value != 0, scale=scale, like=like)

    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, **options)
    environment.filters |= {
        "percent": numbers.format_percent, "short": numbers.format_number, "beside": numbers.format_beside,
        "p": numbers.format_p, "distance": format_distance, "brief": _shorten,
        "confidence": numbers.format_confidence, "redact": redact,
    }  # fmt: skip
    return environment.get_template("page.html.j2")


def _shorten(name: str) -> str:
    """Return the first of several names of a class."""
    return name.split(",")[0] if len(name) > MAX_NAME else name


def _embed_json(tree: Any) -> str:
    """Serialize to JSON that cannot end the script element that it is embedded in."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _collect_data(views: Sequence[View], panels: Sequence[dict[str, Any]], unit: float | int) -> dict[str, Any]:
    """Collect the data of the page's script: specs without data, each dataset once, pictures, and the themes."""
    sizing = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return {
        "unit": unit, "config": vega_config(),
        "themes": {theme: dict(zip(NAMES, colours, strict=True)) for theme, colours in THEMES.items()},
        "specs": {view.norm: {plot.name: plot.to_spec(view) | sizing for plot in plots_with_data(view)}
                  for view in views},
        "datasets": {view.dataset_name(name): _pack(data) for view in views for name, data in view.datasets.items()},
        "uses": {plot.name: plot.datasets for plot in PLOTS},
        "pin": {view.norm: view.axis.eps[0] for view in views if view.axis.eps},
        "pin_text": {view.norm: getattr(view.axis.eps[0], "text", None) for view in views if view.axis.eps},
        "pixels": {view.norm: view.axis.pixels for view in views},
        "margins": {view.norm: {series.name: _pack_margins(series) for series in view.group} for view in views},
        "classes": {view.norm: _pack_classes(panel) for view, panel in zip(views, panels, strict=True)
                    if len(view.classes) > MAX_CLASSES},
        **_pack_pictures(panels),
    }  # fmt: skip


def _pack(data: Dataset) -> dict[str, Any]:
    """Pack columns; a constant column becomes its value."""
    columns = {name: values[0] if len(set(values)) == 1 else values for name, values in data.columns.items()}
    names = {name: data.names[name] for name in data.names if name in columns}
    return {"length": len(next(iter(data.columns.values()))), "columns": columns, "names": names}


def _pack_margins(series: Series) -> dict[str, Any]:
    """Pack all margins, sorted, in single precision, from which the page counts samples at any ε."""
    packed = base64.b64encode(np.sort(series.margins).astype("<f4").tobytes()).decode()
    return {"total": series.total, "sorted": packed}


def _pack_classes(panel: dict[str, Any]) -> dict[str, list[Any]]:
    """Pack the classes of each series for the search by name."""

    def digits(value: float) -> float | None:
        return float(f"{value:.4g}") if np.isfinite(value) else None

    return {detail["name"]: [(row.name, row.n, digits(row.median), digits(row.low), digits(row.high), row.not_found,
                              row.adversarial_class, round(row.share, 2)) for row in detail["classes"]]
            for detail in panel["details"]}  # fmt: skip


def _pack_pictures(panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pack the pictures of the listed samples; inputs that several norms or runs share are stored once."""
    originals, pictures = {}, {}
    for sample in (s for panel in panels for d in panel["details"] for group in d["groups"] for s in group["samples"]):
        if picture := sample["picture"]:
            originals[sample["input"]] = picture.get("original")
            rest = {name: value for name, value in picture.items() if name != "original"}
            pictures[sample["key"]] = {**rest, "input": sample["input"]}
    return {"originals": originals, "pictures": pictures}
