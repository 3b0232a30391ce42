"""How charts look, and the pieces that several of them use: data, axes, the pin, colours for light and dark."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import altair as alt

from marginattack.report.datasets import View
from marginattack.report.summary import SYMBOL

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

# Told apart by people who see few colours, and 3:1 on both backgrounds; lines differ in their dashes too.
PALETTE = ("#2b7bc8", "#c2620a", "#1c8a63", "#a355b5", "#8a7420", "#c4487a", "#4f7f8f", "#7a6fd0")
BLUE, ORANGE, GREEN = PALETTE[:3]
GREY = "#7a7f87"
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4], [1, 4], [6, 2, 2, 2])

# the page's own: text, quiet text, lines, background; page.css has the same
THEMES = {"light": ("#1c1f24", "#5a616b", "#e3e6ea", "#ffffff"), "dark": ("#e8eaed", "#a5adb8", "#343a43", "#1b1e23")}

SIDE = "!isValid(pin) ? 'none' : datum.d <= pin ? 'below' : 'above'"  # of the pin, for rows with a margin d


def config(theme: str, font: str = "system-ui, sans-serif") -> dict[str, Any]:
    """Vega-Lite's config for a background."""
    text, quiet, line, _ = THEMES[theme]
    return {
        "background": None, "font": font, "view": {"stroke": None}, "padding": 2,
        "axis": {"labelColor": quiet, "titleColor": text, "gridColor": line, "domainColor": quiet, "tickColor": quiet,
                 "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500, "labelOverlap": True},
        "legend": {"labelColor": text, "titleColor": text, "orient": "top", "labelFontSize": 12, "labelLimit": 260,
                   "symbolStrokeWidth": 2, "columns": 2},
        "text": {"color": text, "fontSize": 12}, "rule": {"color": text}, "tick": {"color": text},
        "rect": {"stroke": None}, "title": {"color": text, "fontSize": 13, "anchor": "start"},
    }  # fmt: skip


def data(view: View, name: str) -> alt.Chart:
    """A chart of one of the view's datasets."""
    return alt.Chart(alt.NamedData(name=view.named(name)))


def chosen(view: View, name: str) -> alt.Chart:
    """A chart of the rows of the chosen series."""
    return data(view, name).transform_filter("datum.series === series")


def parameters(view: View, *wanted: str) -> list[alt.Parameter]:
    """Parameters that charts share by name, as they are at first."""
    first = view.datasets["trace"].columns["id"][:1]
    at_first = {"times": 1, "pin": None, "only": None, "series": view.group[0].name, "order": "name",
                "sample": first[0] if first else None}  # fmt: skip
    return [alt.param(name=name, value=at_first[name]) for name in wanted]


def colours(view: View) -> alt.Color:
    """One colour a series; a legend where there are several."""
    names = [series.name for series in view.group]
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1, symbolSize=300) if len(names) > 1 else None
    return alt.Color("series:N", scale=alt.Scale(domain=names, range=cycle(PALETTE, names)), legend=legend)


def dashes(view: View) -> alt.StrokeDash:
    """One dash a series."""
    names = [series.name for series in view.group]
    legend = alt.Legend(title=None, symbolType="stroke", symbolOpacity=1, symbolSize=300) if len(names) > 1 else None
    return alt.StrokeDash("series:N", scale=alt.Scale(domain=names, range=cycle(DASHES, names)), legend=legend)


def cycle(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[i % len(values)] for i in range(len(names))]


def margins(view: View, **more: Any) -> alt.X:
    """The axis of margins, as far as they are worth showing."""
    axis = alt.Axis(format="~g", tickCount=6, grid=False)
    domain = alt.Scale(domain=[0, alt.ExprRef(f"{view.top} * times")], nice=False)
    return alt.X("x:Q", title=f"margin, {SYMBOL.get(view.norm, view.norm)}", scale=domain, axis=axis, **more)


def standing_out() -> Any:
    """Opaque, unless beyond the pin."""
    return alt.when("datum.side === 'above'").then(alt.value(0.25)).otherwise(alt.value(0.85))


def pin(*, label: bool) -> list[alt.Chart]:
    """The line at the pinned ε, if there is one."""
    one = alt.Chart(alt.InlineData(values=[{}])).transform_filter("isValid(pin)")
    one = one.transform_calculate(x="pin * times", told="'ε = ' + format(pin * times, '.4~g')")
    line = one.mark_rule(strokeWidth=1.5, clip=True).encode(alt.X("x:Q"))
    words = one.mark_text(align="left", dx=5, dy=4, baseline="top", fontWeight=600)
    return [line, words.encode(alt.X("x:Q"), y=alt.value(0), text="told:N")] if label else [line]
