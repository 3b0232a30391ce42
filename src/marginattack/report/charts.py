"""All charts: to add one, write a function ``View -> Chart`` and add a line to ``PLOTS``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from marginattack.report import encodings as enc
from marginattack.report.axes import class_labels, margin_scale, margin_x, margin_y
from marginattack.report.datasets import View
from marginattack.report.encodings import Chart, draw_pin, opacity_if, selected_series, tooltips
from marginattack.report.theme import BLUE, GREEN, GREY, ORANGE

HEIGHT = 280
MAX_LABELLED = 14  # classes of a matrix whose cells have room for numbers
MOVES = {"start": ("diamond", GREY), "restoration": ("circle", BLUE), "projection": ("triangle-up", ORANGE),
         "closing": ("square", GREEN)}  # fmt: skip
# label of u = 1 - confidence: in percent down to 0.05 %, then as a power of ten
CONFIDENCE_LABEL = (
    "datum.value > 0.5 ? '0 %' : datum.value > 0.0005 ? format(100 - 100 * datum.value, '.4~g') + ' %' :"
    " '1 − 10⁻' + ['⁰','¹','²','³','⁴','⁵','⁶','⁷','⁸','⁹','¹⁰'][round(-log(datum.value) / LN10)]"
)


def draw_curve(view: View, log: bool = False) -> Chart:
    """Draw robust accuracy against ε, with the certified share below it where that is known.

    Pointing reads a value, a click pins ε, the legend selects series.
    """
    axis, style, bounded = view.axis, enc.style_series(view), any(series.bounded for series in view.group)
    hover = alt.selection_point(
        name="hover", on="pointerover", clear="pointerout", nearest=True, fields=["eps"], empty=False
    )
    click = alt.selection_point(name="clicked_eps", on="click", nearest=True, fields=["eps"], empty=False, toggle=False)
    legend = alt.selection_point(name="legend", fields=["series"], bind="legend")
    start = axis.log_start if log else 0
    base = alt.Chart(alt.NamedData(name=view.dataset_name("curve"))).transform_filter(
        f"datum.eps >= {start} && datum.eps <= {axis.limit}"
    )
    base = base.transform_calculate(x="datum.eps * unit_scale")
    x = alt.X("x:Q", title=f"ε, {axis.symbol}", scale=margin_scale(axis, log=log),
              axis=alt.Axis(format="~g", tickCount=7, grid=False))  # fmt: skip
    y = alt.Y("robust:Q", title="robust accuracy, %", scale=alt.Scale(domain=[0, 100]))
    band = base.mark_area(clip=True).encode(
        x, alt.Y("low:Q", title="robust accuracy, %"), alt.Y2("high:Q"), color=style["color"],
        opacity=opacity_if(legend, 0.2, 0.03),
    )  # fmt: skip
    dotted = base.mark_line(strokeWidth=1, strokeDash=[1, 3], clip=True)
    ends = [
        dotted.encode(x, alt.Y(f"{end}:Q", title="robust accuracy, %"), color=style["color"]) for end in ("low", "high")
    ]
    line = base.mark_line(strokeWidth=2, clip=True).encode(x, y, **style, opacity=opacity_if(legend, 1.0, 0.12))
    points = base.mark_point(size=60, filled=True).encode(
        x, y, color=style["color"], opacity=opacity_if(hover, 1.0, 0.0),
        tooltip=tooltips(("series:N", "run"), ("x:Q", "ε", ".4~g"), ("robust:Q", "robust accuracy, %", ".1f"),
                         ("low:Q", "95 % CI from", ".1f"), ("high:Q", "to", ".1f"),
                         *([("certified:Q", "certified, %", ".1f")] if bounded else [])),
    )  # fmt: skip
    known = base.transform_filter("isValid(datum.certified)").mark_area(clip=True)
    fade = [opacity_if(legend, share, 0.03) for share in (0.25, 0.2)]
    colour = style["color"] if len(view.group) > 1 else alt.value(GREEN)
    certified = known.encode(x, alt.Y("certified:Q", title="robust accuracy, %"), color=colour, opacity=fade[0])
    unknown = known.encode(x, alt.Y("certified:Q", title="robust accuracy, %"), alt.Y2("robust:Q"),
                           color=alt.value(GREY), opacity=fade[1])  # fmt: skip
    sides = [certified, unknown, *ends] if bounded else [band]
    ruler = base.transform_filter(hover).mark_rule(strokeDash=[2, 3]).encode(x)
    return alt.layer(*sides, line.add_params(legend), ruler, points.add_params(hover, click), *draw_pin(label=True))


def draw_histogram(view: View) -> Chart:
    """Draw the number of samples by margin; those above the pinned ε fade."""
    width = view.axis.bin_width
    binned = (
        selected_series(view, "rows")
        .transform_filter(enc.IN_SELECTED_CLASS)
        .transform_calculate(bin=f"max(0, ceil(datum.d / {width} - 1e-9) - 1)", side=enc.SIDE_OF_PIN)
        .transform_aggregate(count="sum(n)", groupby=["bin", "side"])
        .transform_calculate(x=f"datum.bin * {width} * unit_scale", x2=f"(datum.bin + 1) * {width} * unit_scale")
    )
    bars = binned.mark_bar(color=BLUE, clip=True, binSpacing=1).encode(
        margin_x(view.axis, bin="binned"), alt.X2("x2:Q"),
        alt.Y("count:Q", title="samples", axis=alt.Axis(tickMinStep=1, tickCount=5)),
        opacity=opacity_if("datum.side === 'above'", 0.25, 0.85), order=alt.Order("side:N", sort="descending"),
        tooltip=tooltips(("x:Q", "margin from", ".4~g"), ("x2:Q", "to", ".4~g"), ("count:Q", "samples"),
                         ("side:N", "relative to the pinned ε")),
    )  # fmt: skip
    return alt.layer(bars, *draw_pin())


def draw_confidence(view: View) -> Chart:
    """Draw margin against confidence on a logarithmic axis of 1 - confidence."""
    axis = view.axis
    base = (
        selected_series(view, "rows")
        .transform_filter(f"{enc.IN_SELECTED_CLASS} && datum.d <= {axis.limit}")
        .transform_calculate(y="datum.d * unit_scale", side=enc.SIDE_OF_PIN, confidence="format(1 - datum.u, '.5%')")
    )
    decades = [10.0**-k for k in range(11)]
    smallest = min(view.datasets["rows"].columns["u"], default=0.1)
    end = max((decade for decade in decades if decade <= smallest * 1.0001), default=decades[-1])
    x = alt.X("u:Q", title="confidence", scale=alt.Scale(type="log", domain=[end, 1], reverse=True, nice=False),
              axis=alt.Axis(values=decades, labelExpr=CONFIDENCE_LABEL, grid=False, labelFlush=True))  # fmt: skip
    points = base.mark_circle(color=BLUE).encode(
        x, margin_y(axis, "y:Q", scale=margin_scale(axis)), opacity=opacity_if("datum.side === 'above'", 0.12, 0.7),
        size=alt.Size("n:Q", scale=alt.Scale(range=[6, 260]), legend=None) if view.binned else alt.value(16),
        tooltip=tooltips(*([] if view.binned else [("id:Q", "sample")]), ("from:N", "class"),
                         ("to:N", "adversarial class"), ("y:Q", "margin", ".4~g"), ("confidence:N", "confidence"),
                         ("n:Q", "samples")),
    )  # fmt: skip
    return alt.layer(points, *draw_pin("y"))


def draw_strips(view: View) -> Chart:
    """Draw the margins of each class as a strip, darker where more samples are, with quartiles and median."""
    width = view.axis.bin_width
    click = alt.selection_point(name="clicked_class", fields=["from"], toggle=False)
    base = (
        selected_series(view, "strips")
        .transform_calculate(
            x=f"datum.bin * {width} * unit_scale", x2=f"(datum.bin + 1) * {width} * unit_scale",
            n_below=f"isValid(pin) && (datum.bin + 1) * {width} <= pin * 1.000001 ? datum.n : 0",
            low="datum.q1 * unit_scale", median="datum.q2 * unit_scale", high="datum.q3 * unit_scale",
            shade="datum.share * (isValid(selected_class) && datum.from !== selected_class ? 0.25 : 1)",
        )
        .transform_joinaggregate(below="sum(n_below)", groupby=["from"])
        .transform_calculate(
            key="class_order === 'median' ? datum.q2 : class_order === 'below' ? -datum.below / datum.of"
            " : datum.number",
            share_below="isValid(pin) ? format(datum.below / datum.of, '.1%') : 'no ε pinned'",
        )
    )  # fmt: skip
    order = alt.EncodingSortField(field="key", op="min", order="ascending")
    y = alt.Y("from:N", title="class", sort=order, axis=class_labels())
    strips = base.mark_rect(color=BLUE, clip=True, cursor="pointer").encode(
        margin_x(view.axis), alt.X2("x2:Q"), y,
        opacity=alt.Opacity("shade:Q", scale=alt.Scale(domain=[0, 1], range=[0, 0.85]), legend=None),
        tooltip=tooltips(("from:N", "class"), ("x:Q", "margin from", ".4~g"), ("x2:Q", "to", ".4~g"),
                         ("n:Q", "samples"), ("of:Q", "samples of the class"), ("median:Q", "median", ".4~g"),
                         ("share_below:N", "below the pinned ε")),
    )  # fmt: skip
    once = base.transform_filter("datum.first == 1")
    quartiles = once.mark_rule(strokeWidth=1.5, clip=True).encode(alt.X("low:Q"), alt.X2("high:Q"), y)
    median = once.mark_tick(thickness=3, clip=True).encode(alt.X("median:Q"), y)
    layers = alt.layer(strips.add_params(click), quartiles, median, *draw_pin())
    return layers.properties(height=max(120, 26 * len(view.shown)))


def draw_matrix(view: View) -> Chart:
    """Draw how many samples of each class have which adversarial class, below the pinned ε if there is one."""
    pairs = alt.LookupData(data=alt.NamedData(name=view.dataset_name("pairs")), key="pair", fields=["all", "median"])
    base = (
        selected_series(view, "rows")
        .transform_filter("!isValid(pin) || datum.d <= pin")
        .transform_aggregate(count="sum(n)", groupby=["series", "from", "to"])
        .transform_calculate(pair="datum.series + ' ' + datum.from + ' ' + datum.to")
        .transform_lookup(lookup="pair", from_=pairs)
        .transform_filter("isValid(datum.all)")
        .transform_calculate(scaled_median="datum.median * unit_scale")
    )
    few = len(view.shown) <= MAX_LABELLED
    scale = alt.Scale(domain=view.shown)
    x = alt.X("to:N", title="adversarial class", scale=scale, axis=class_labels(0 if few else -90))
    y = alt.Y("from:N", title="class", scale=scale, axis=class_labels())
    cells = base.mark_rect(color=BLUE).encode(
        x, y, opacity=alt.Opacity("count:Q", scale=alt.Scale(domainMin=0, range=[0.08, 0.7]), legend=None),
        tooltip=tooltips(("from:N", "class"), ("to:N", "adversarial class"), ("count:Q", "samples"),
                         ("all:Q", "at any distance"), ("scaled_median:Q", "their median margin", ".4~g")),
    )  # fmt: skip
    numbers = [base.mark_text(fontSize=11).encode(x, y, text="count:Q")] if few else []
    return alt.layer(cells, *numbers).properties(height=max(120, 26 * len(view.shown)))


def draw_distance(view: View) -> Chart:
    """Draw the distance of each queried point from the input."""
    return _draw_queries(view, margin_y(view.axis, "scaled_distance:Q", "distance"))


def draw_constraint(view: View) -> Chart:
    """Draw the constraint at each queried point: below 0 the point is adversarial."""
    scale = alt.Scale(type="symlog", constant=0.01)
    labels = alt.Axis(format="~g", values=[-10, -1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10, 100])
    return _draw_queries(view, alt.Y("c:Q", title="constraint c (below 0: adversarial)", scale=scale, axis=labels))


def draw_progress(view: View) -> Chart:
    """Draw the smallest distance found so far against passes, one line per sample."""
    found = selected_series(view, "trace").transform_filter("isValid(datum.best)")
    found = found.transform_calculate(y="datum.best * unit_scale")
    lines = found.mark_line(interpolate="step-after", color=BLUE, strokeWidth=1.8).encode(
        alt.X("passes:Q", title="passes (forwards + backwards)", axis=alt.Axis(grid=False, tickCount=8)),
        margin_y(view.axis, "y:Q", "smallest distance so far", scale=alt.Scale(zero=False)),
        detail="id:N", opacity=opacity_if("datum.id === sample", 1.0, 0.45),
        tooltip=tooltips(("id:Q", "sample"), ("passes:Q", "passes"), ("y:Q", "smallest distance so far", ".4~g")),
    )  # fmt: skip
    return alt.layer(lines)


def _draw_queries(view: View, y: alt.Y) -> Chart:
    """Draw a value by query, with a mark for the move that led to each point."""
    base = selected_series(view, "trace").transform_filter("datum.id === sample")
    base = base.transform_calculate(scaled_distance="datum.distance * unit_scale")
    marks = [MOVES.get(move, ("cross", GREY)) for move in view.moves]
    shapes = alt.Scale(domain=view.moves, range=[shape for shape, _ in marks])
    colours = alt.Scale(domain=view.moves, range=[colour for _, colour in marks])
    x = alt.X("query:Q", title="query", axis=alt.Axis(grid=False, tickMinStep=1))
    legend = alt.Legend(title=None, columns=4) if len(view.moves) > 1 else None
    points = base.mark_point(filled=True, size=34, opacity=0.9).encode(
        x, y, shape=alt.Shape("move:N", scale=shapes, legend=legend),
        color=alt.Color("move:N", scale=colours, legend=legend),
        tooltip=tooltips(("move:N", "after"), ("query:Q", "query"), ("passes:Q", "passes"),
                         ("scaled_distance:Q", "distance", ".4~g"), ("c:Q", "constraint", ".3~g")),
    )  # fmt: skip
    line = base.mark_line(strokeWidth=1, color=GREY, opacity=0.6).encode(x, y)
    return alt.layer(line, points)


@dataclass(frozen=True)
class Plot:
    """A chart: its name, the function that draws it, and the datasets that it uses."""

    name: str
    draw: Callable[[View], Chart]
    datasets: tuple[str, ...]

    def to_spec(self, view: View, *, validate: bool = False) -> dict[str, Any]:
        """Return the Vega-Lite spec without data. Validation is slow, so only tests ask for it."""
        with debug_mode(validate):
            spec = self.draw(view).add_params(*enc.parameters(view)).to_dict(validate=validate)
        return {"height": HEIGHT, **{name: value for name, value in spec.items() if name not in ("config", "$schema")}}


PLOTS = (
    Plot("curve", draw_curve, ("curve",)),
    Plot("curve-log", partial(draw_curve, log=True), ("curve",)),
    Plot("histogram", draw_histogram, ("rows",)),
    Plot("strips", draw_strips, ("strips",)),
    Plot("matrix", draw_matrix, ("rows", "pairs")),
    Plot("confidence", draw_confidence, ("rows",)),
    Plot("distance", draw_distance, ("trace",)),
    Plot("constraint", draw_constraint, ("trace",)),
    Plot("progress", draw_progress, ("trace",)),
)


def plots_with_data(view: View) -> list[Plot]:
    """Return the plots that have anything to draw."""
    return [plot for plot in PLOTS if all(view.datasets[name].columns["series"] for name in plot.datasets)]
