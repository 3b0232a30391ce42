"""The page: what stored runs say as one file of HTML that needs nothing else."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marginattack._version import __version__
from marginattack.report import bundle, panels, provenance
from marginattack.report.charts import PLOTS, drawn
from marginattack.report.datasets import MOST_CLASSES, Dataset, View, views
from marginattack.report.look import config
from marginattack.report.summary import SYMBOL, Series, by_norm, read, sentence

HERE = Path(__file__).parent


def page(runs: Sequence[str | Path], unit: float | int = 1) -> str:
    """The whole page."""
    every = read(runs)
    with bundle.script() as library:
        groups = by_norm(every)
        shown = views(groups)
        told: str = _template().render(
            title=_title(every), runs=provenance.runs(every), several=len(every) > len(groups), unit=unit,
            series=[panels.numbers(series) for series in every], findings=panels.findings(every), symbol=SYMBOL,
            num=_numbers(unit), sentences=[(series.name, series.part.norm, sentence(series)) for series in every],
            views=[panels.panel(view) for view in shown], most=MOST_CLASSES, version=__version__,
            comparisons=[line for view in shown for line in panels.comparisons(view)],
            classes=list(dict.fromkeys(name for view in shown for name in view.shown)),
            names=list(dict.fromkeys(series.name for series in every)), style=(HERE / "page.css").read_text(),
            data=_script(_data(shown, unit)), library=library(), script=(HERE / "page.js").read_text(),
        )  # fmt: skip
    return told


def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": _share, "short": short}
    return environment.get_template("page.html.j2")


def short(value: float | int | None) -> str:
    """Four significant digits; infinity is what was not found."""
    if value is None or np.isnan(value):
        return "–"
    return "not found" if np.isinf(value) else f"{value:.4g}"


def _numbers(unit: float | int) -> Callable[..., Any]:
    """What writes a distance so that the page's script can write it in another unit."""
    from markupsafe import Markup

    def number(value: float | int | None, scaled: bool = True) -> Any:
        if not scaled or value is None or not np.isfinite(value):
            return short(value)
        return Markup('<span class="num" data-v="{}">{}</span>').format(f"{value:.6g}", short(value * unit))

    return number


def _share(value: float, digits: int = 1) -> str:
    return "–" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def _script(tree: Any) -> str:
    """JSON that may stand in a script element, whatever it says."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _title(every: Sequence[Series]) -> str:
    stores = {id(series.store): series.store.manifest for series in every}.values()
    models = list(dict.fromkeys(manifest["model"]["name"] for manifest in stores))
    data = list(dict.fromkeys(manifest["data"]["name"] for manifest in stores))
    return f"{_list(models)} on {_list(data)}"


def _list(words: Sequence[str]) -> str:
    return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def _data(shown: Sequence[View], unit: float | int) -> dict[str, Any]:
    """What the page's script needs: specs without data, datasets once for all, and the looks of light and dark."""
    specs = {view.norm: {plot.name: _spec(plot.spec(view)) for plot in PLOTS if drawn(view, plot)} for view in shown}
    return {
        "unit": unit, "specs": specs, "config": {theme: config(theme) for theme in ("light", "dark")},
        "datasets": {view.named(name): _packed(data) for view in shown for name, data in view.datasets.items()},
        "uses": {plot.name: plot.datasets for plot in PLOTS},
        "series": {view.norm: {series.name: {"held": len(series.margins)} for series in view.group} for view in shown},
    }  # fmt: skip


def _spec(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def _packed(data: Dataset) -> dict[str, Any]:
    """Columns; one that holds a single value throughout is that value."""
    columns = {name: values[0] if len(set(values)) == 1 else values for name, values in data.columns.items()}
    length = len(next(iter(data.columns.values())))
    return {
        "length": length,
        "columns": columns,
        "names": {name: data.names[name] for name in data.names if name in columns},
    }
