"""The charts, as Altair specs: one function ``View → chart`` a plot, and one line in ``PLOTS``.

Charts share parameters by name, and the page keeps equal what has the same name:

    times   by which margins are multiplied: 1 or 255
    pin     the ε that was clicked (``pick`` in the curve), or null
    only    the class that was clicked (``choose`` in the strips), or null
    series  the run and attack that the details are about
    order   how classes are sorted: name, median or below
    sample  whose convergence is shown
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from marginattack.report.class_charts import matrix, strips
from marginattack.report.datasets import View
from marginattack.report.look import (
    BLUE,
    SIDE,
    Chart,
    chosen,
    colours,
    dashes,
    data,
    margins,
    parameters,
    pin,
    standing_out,
)
from marginattack.report.summary import SYMBOL
from marginattack.report.trace_charts import constraint, progress, sizes

HEIGHT = 280

# the label of 10^-k on an axis of what confidence lacks to 1
NINES = (
    "datum.value > 0.5 ? '0 %' : datum.value > 0.0005 ? format(100 - 100 * datum.value, '.4~g') + ' %' :"
    " '1 − 10⁻' + ['⁰','¹','²','³','⁴','⁵','⁶','⁷','⁸','⁹','¹⁰'][round(-log(datum.value) / LN10)]"
)


@dataclass(frozen=True)
class Plot:
    """A chart's name, how it is made, and the datasets it draws."""

    name: str
    make: Callable[[View], Chart]
    datasets: tuple[str, ...]

    def spec(self, view: View) -> dict[str, Any]:
        """The spec, without its data. Altair's checks, which take long, are for the tests."""
        with debug_mode(False):
            spec = self.make(view).to_dict(validate=False)
        return {"height": HEIGHT, **{name: value for name, value in spec.items() if name not in ("config", "$schema")}}


def curve(view: View, log: bool = False) -> Chart:
    """Robust accuracy against ε: a line and a band a series; hover reads, click pins, the legend selects."""
    hover = alt.selection_point(
        name="hover", on="pointerover", clear="pointerout", nearest=True, fields=["eps"], empty=False
    )
    pick = alt.selection_point(name="pick", on="click", nearest=True, fields=["eps"], empty=False, toggle=False)
    legend = alt.selection_point(name="legend", fields=["series"], bind="legend")
    first = min(view.lowest, view.top / 2) if log else 0
    base = data(view, "curve").transform_filter(f"datum.eps >= {first} && datum.eps <= {view.top}")
    base = base.transform_calculate(x="datum.eps * times")
    ends = [alt.ExprRef(f"{first} * times"), alt.ExprRef(f"{view.top} * times")]
    scale = alt.Scale(type="log" if log else "linear", domain=ends, nice=False)
    axis = alt.Axis(format="~g", tickCount=7, grid=False)
    x = alt.X("x:Q", title=f"ε, {SYMBOL.get(view.norm, view.norm)}", scale=scale, axis=axis)
    y = alt.Y("robust:Q", title="robust accuracy, %", scale=alt.Scale(domain=[0, 100]))
    tooltip = [
        alt.Tooltip("series:N", title="run"), alt.Tooltip("x:Q", title="ε", format=".4~g"),
        alt.Tooltip("robust:Q", title="robust accuracy, %", format=".1f"),
        alt.Tooltip("low:Q", title="95 % interval from", format=".1f"), alt.Tooltip("high:Q", title="to", format=".1f"),
    ]  # fmt: skip
    band = base.mark_area(clip=True).encode(
        x, alt.Y("low:Q", title="robust accuracy, %"), alt.Y2("high:Q"), color=colours(view),
        opacity=alt.when(legend).then(alt.value(0.2)).otherwise(alt.value(0.03)),
    )  # fmt: skip
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        x, y, color=colours(view), strokeDash=dashes(view),
        opacity=alt.when(legend).then(alt.value(1)).otherwise(alt.value(0.12)),
    )  # fmt: skip
    read = base.mark_point(size=60, filled=True).encode(
        x, y, color=colours(view), tooltip=tooltip,
        opacity=alt.when(hover).then(alt.value(1)).otherwise(alt.value(0)),
    )  # fmt: skip
    ruler = base.transform_filter(hover).mark_rule(strokeDash=[2, 3]).encode(x)
    layers = alt.layer(band, line.add_params(legend), ruler, read.add_params(hover, pick), *pin(label=True))
    return layers.add_params(*parameters(view, "times", "pin"))


def curve_log(view: View) -> Chart:
    """The same on a logarithmic axis."""
    return curve(view, log=True)


def histogram(view: View) -> Chart:
    """How many samples have which margin; those below the pin stand out."""
    binned = (
        chosen(view, "rows")
        .transform_filter("!isValid(only) || datum.from === only")
        .transform_calculate(bin=f"max(0, ceil(datum.d / {view.step} - 1e-9) - 1)", side=SIDE)
        .transform_aggregate(count="sum(n)", groupby=["bin", "side"])
        .transform_calculate(x=f"datum.bin * {view.step} * times", x2=f"(datum.bin + 1) * {view.step} * times")
    )
    y = alt.Y("count:Q", title="samples", axis=alt.Axis(tickMinStep=1, tickCount=5))
    bars = binned.mark_bar(color=BLUE, clip=True, binSpacing=1).encode(
        margins(view, bin="binned"), alt.X2("x2:Q"), y,
        opacity=standing_out(), order=alt.Order("side:N", sort="descending"),
        tooltip=[alt.Tooltip("x:Q", title="margin from", format=".4~g"), alt.Tooltip("x2:Q", title="to", format=".4~g"),
                 alt.Tooltip("count:Q", title="samples"), alt.Tooltip("side:N", title="side of the pinned ε")],
    )  # fmt: skip
    return alt.layer(bars, *pin(label=False)).add_params(*parameters(view, "times", "pin", "only", "series"))


def confidence(view: View) -> Chart:
    """Margin against the confidence in the right class, which is shown by how little it lacks to 1."""
    base = (
        chosen(view, "rows")
        .transform_filter(f"(!isValid(only) || datum.from === only) && datum.d <= {view.top}")
        .transform_calculate(y="datum.d * times", side=SIDE, told="format(1 - datum.u, '.5%')")
    )
    lacks = min(view.datasets["rows"].columns["u"], default=0.1)
    decades = [10.0**-k for k in range(11)]
    last = max((d for d in decades if d <= lacks * 1.0001), default=decades[-1])
    scale = alt.Scale(type="log", domain=[last, 1], reverse=True, nice=False)
    axis = alt.Axis(values=decades, labelExpr=NINES, grid=False, labelFlush=True)
    domain = alt.Scale(domain=[0, alt.ExprRef(f"{view.top} * times")], nice=False)
    size = alt.Size("n:Q", scale=alt.Scale(range=[6, 260]), legend=None) if view.binned else alt.value(16)
    points = base.mark_circle(color=BLUE).encode(
        alt.X("u:Q", title="confidence", scale=scale, axis=axis),
        alt.Y("y:Q", title=f"margin, {SYMBOL.get(view.norm, view.norm)}", scale=domain,
              axis=alt.Axis(format="~g", tickCount=6)),
        size=size, opacity=alt.when("datum.side === 'above'").then(alt.value(0.12)).otherwise(alt.value(0.7)),
        tooltip=[*([] if view.binned else [alt.Tooltip("id:Q", title="sample")]), alt.Tooltip("from:N", title="class"),
                 alt.Tooltip("to:N", title="goes to"), alt.Tooltip("y:Q", title="margin", format=".4~g"),
                 alt.Tooltip("told:N", title="confidence"), alt.Tooltip("n:Q", title="samples")],
    )  # fmt: skip
    line = alt.Chart(alt.InlineData(values=[{}])).transform_filter("isValid(pin)").transform_calculate(y="pin * times")
    layers = alt.layer(points, line.mark_rule(strokeWidth=1.5, clip=True).encode(alt.Y("y:Q")))
    return layers.add_params(*parameters(view, "times", "pin", "only", "series"))


PLOTS = (
    Plot("curve", curve, ("curve",)),
    Plot("curve-log", curve_log, ("curve",)),
    Plot("histogram", histogram, ("rows",)),
    Plot("strips", strips, ("strips",)),
    Plot("matrix", matrix, ("rows", "pairs")),
    Plot("confidence", confidence, ("rows",)),
    Plot("sizes", sizes, ("trace",)),
    Plot("constraint", constraint, ("trace",)),
    Plot("progress", progress, ("trace",)),
)


def drawn(view: View, plot: Plot) -> bool:
    """Whether there is anything to draw."""
    return all(view.datasets[name].columns["series"] for name in plot.datasets)
