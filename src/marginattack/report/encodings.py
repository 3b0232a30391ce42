"""Shared by all charts: data sources, parameters, colours of series, tooltips and the line at the pinned ε.

All charts have these parameters, and the page gives all charts of a norm the same values:

    unit_scale      factor for distances: 1, or 255 for pixels up to 255
    pin             the pinned ε, or null; clicking the curve sets ``clicked_eps``
    pin_text        the pinned ε as it was typed, or null
    selected_class  the class that is shown alone, or null; clicking a strip sets ``clicked_class``
    series          the run and attack whose details are shown
    class_order     how classes are sorted: name, median or below
    sample          the traced sample that is shown
    highlight       the series whose curve is highlighted, or null for all; clicking a legend sets ``clicked_series``
"""

from itertools import cycle, islice
from typing import Any, TypeAlias

import altair as alt

from marginattack.core.rounding import ROUNDING
from marginattack.report.axes import MarginAxis
from marginattack.report.datasets import View
from marginattack.report.theme import DASHES, PALETTE

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

IN_SELECTED_CLASS = "(!isValid(selected_class) || datum.from === selected_class)"
HIGHLIGHTED = "(!isValid(highlight) || datum.series === highlight)"
WITHIN_PIN = f"(pin + min({ROUNDING[0]} * pin, {ROUNDING[1]} * max(pin, 1)))"  # ``rounded_up`` as an expression of Vega
SIDE_OF_PIN = f"!isValid(pin) ? 'none' : datum.d <= {WITHIN_PIN} ? 'below' : 'above'"  # for rows with a margin d


def selected_series(view: View, name: str) -> alt.Chart:
    """Return a chart of the rows of one of the view's datasets that belong to the selected series."""
    return alt.Chart(alt.NamedData(name=view.dataset_name(name))).transform_filter("datum.series === series")


def parameters(view: View) -> list[alt.Parameter]:
    """Return the shared parameters with their initial values."""
    traced = view.datasets["trace"].columns["id"]
    pin = next(iter(view.axis.eps), None)
    typed = getattr(pin, "text", None)
    order = "name" if len(view.classes) == len(view.shown) else "median"
    initial = {"unit_scale": view.axis.scale, "pin": pin and float(pin), "pin_text": typed, "selected_class": None,
               "series": view.series_names[0], "class_order": order, "sample": min(traced, default=None),
               "highlight": None}  # fmt: skip
    return [alt.param(name=name, value=value) for name, value in initial.items()]


def tooltips(*entries: tuple[str, ...]) -> list[alt.Tooltip]:
    """Return tooltip entries, each given as field, title and, if needed, number format."""
    return [alt.Tooltip(f, title=title, format=form[0] if form else alt.Undefined) for f, title, *form in entries]


def style_series(view: View) -> dict[str, Any]:
    """Return the channels that give each series a colour and a dash; with a legend if there are several."""
    names = view.series_names
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1, symbolSize=300) if len(names) > 1 else None
    colours, dashes = (
        alt.Scale(domain=names, range=list(islice(cycle(values), len(names)))) for values in (PALETTE, DASHES)
    )
    return {"color": alt.Color("series:N", scale=colours, legend=legend),
            "strokeDash": alt.StrokeDash("series:N", scale=dashes, legend=legend)}  # fmt: skip


def opacity_if(condition: Any, yes: float, no: float) -> Any:
    """Return one opacity if a selection or expression holds, else another."""
    return alt.when(condition).then(alt.value(yes)).otherwise(alt.value(no))


def draw_pin(axis: MarginAxis, channel: str = "x", *, label: bool = False) -> list[alt.Chart]:
    """Return the line at the pinned ε across the x or y axis, if there is one, with a label on request."""
    data = alt.Chart(alt.InlineData(values=[{}])).transform_filter("isValid(pin)")
    typed = f"'ε = ' + (isValid(pin_text) ? pin_text : {axis.text('pin')})"
    data = data.transform_calculate(**{channel: "pin * unit_scale"}, text=typed)
    line = data.mark_rule(strokeWidth=1.5, clip=True).encode(**{channel: f"{channel}:Q"})
    text = data.transform_filter(f"pin <= {axis.limit}")  # else it would be drawn outside the chart
    text = text.mark_text(align="left", dx=5, dy=4, baseline="top", fontWeight=600)
    return [line, text.encode(x="x:Q", y=alt.value(0), text="text:N")] if label else [line]
