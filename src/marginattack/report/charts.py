"""All charts: to add one, write a function ``View -> Chart`` and add a line to ``PLOTS``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from marginattack.report import encodings as enc
from marginattack.report.axes import class_labels, margin_scale, margin_x, margin_y
from marginattack.report.datasets import MAX_COMPARED, View
from marginattack.report.encodings import WITHIN_PIN, Chart, draw_pin, opacity_if, selected_series, tooltips
from marginattack.report.theme import BLUE, GREEN, GREY, ORANGE, PALETTE
from marginattack.report.trace_charts import draw_constraint, draw_distance, draw_progress

HEIGHT, SQUARE = 280, 400
MAX_UPRIGHT = 4  # characters of class names below a matrix that fit horizontally
MIN_QUARTILES = 4  # samples of a class
MAX_TITLE = 48  # characters of an axis title
THIN = alt.ExprRef("theme_blue")
MAX_LABELLED = 14  # classes of a matrix with numbers in its cells
# label of u = 1 - confidence: in percent down to 0.05 %, then as a power of ten
CONFIDENCE_LABEL = (
    "datum.value > 0.5 ? '0 %' : datum.value > 0.0005 ? format(100 - 100 * datum.value, '.4~r') + ' %' :"
    " '1 − 10⁻' + ['⁰','¹','²','³','⁴','⁵','⁶','⁷','⁸','⁹','¹⁰'][round(-log(datum.value) / LN10)]"
)


def draw_curve(view: View, log: bool = False) -> Chart:
    """Draw robust accuracy against ε, and the certified accuracy if known.

    Hovering shows a value, a click pins ε, a click on the legend highlights a series.
    """
    axis, style, bounded = view.axis, enc.style_series(view), any(series.bounded for series in view.group)
    hover = alt.selection_point(
        name="hover", on="pointerover", clear="pointerout", nearest=True, fields=["eps"], empty=False
    )
    click = alt.selection_point(name="clicked_eps", on="click", nearest=True, fields=["eps"], empty=False, toggle=False)
    legend = alt.selection_point(name="clicked_series", fields=["series"], bind="legend", toggle=False)
    start = axis.log_start if log else 0
    base = alt.Chart(alt.NamedData(name=view.dataset_name("curve"))).transform_filter(
        f"datum.eps >= {start} && datum.eps <= {axis.limit}"
    )
    base = base.transform_calculate(x="datum.eps * unit_scale", eps_text=axis.text("datum.eps"))
    x = alt.X("x:Q", title=f"ε, {axis.symbol}", scale=margin_scale(axis, log=log),
              axis=axis.log_labels(grid=False) if log else axis.labels(grid=False))  # fmt: skip
    y = alt.Y("robust:Q", title="robust accuracy, %", scale=alt.Scale(domain=[0, 100]))
    band = base.mark_area(clip=True).encode(
        x, alt.Y("low:Q", title="robust accuracy, %"), alt.Y2("high:Q"), color=style["color"],
        opacity=opacity_if(enc.HIGHLIGHTED, 0.2, 0.03),
    )  # fmt: skip
    dotted = base.mark_line(strokeWidth=1.5, strokeDash=[2, 3], clip=True)
    ink = style["color"] if len(view.group) > 1 else alt.value(alt.ExprRef("theme_secondary"))
    ends = [dotted.encode(x, alt.Y(f"{end}:Q", title="robust accuracy, %"), color=ink) for end in ("low", "high")]
    lines = [
        base.transform_filter(enc.HIGHLIGHTED).mark_line(strokeWidth=2, clip=True).encode(x, y, **style),
        base.transform_filter(f"!{enc.HIGHLIGHTED}").mark_line(strokeWidth=1, color=GREY, clip=True)
        .encode(x, y, strokeDash=style["strokeDash"]),
    ]  # fmt: skip
    # The nearest point is found through Voronoi cells, whose datum is the point: an expression keeps the titles.
    fields = {"run": "row.series", "ε": "row.eps_text", "robust accuracy, %": "format(row.robust, '.1f')",
              "95 % CI from": "format(row.low, '.1f')", "to": "format(row.high, '.1f')",
              "certified, %": "isValid(row.certified) ? format(row.certified, '.1f') : '–'"}  # fmt: skip
    fields = {title: value for title, value in fields.items() if bounded or title != "certified, %"}
    tooltip = ", ".join(
        f"'{title}': {value.replace('row', '(datum.datum || datum)')}" for title, value in fields.items()
    )
    points = base.mark_point(size=60, filled=True, tooltip=alt.ExprRef(f"{{{tooltip}}}")).encode(
        x, y, color=style["color"], opacity=opacity_if(hover, 1.0, 0.0)
    )
    known = base.transform_filter("isValid(datum.certified)").mark_area(clip=True)
    fade = [opacity_if(enc.HIGHLIGHTED, share, 0.03) for share in (0.25, 0.2)]
    colour = style["color"] if len(view.group) > 1 else alt.value(GREEN)
    certified = known.encode(x, alt.Y("certified:Q", title="robust accuracy, %"), color=colour, opacity=fade[0])
    unknown = known.encode(x, alt.Y("certified:Q", title="robust accuracy, %"), alt.Y2("robust:Q"),
                           color=alt.value(GREY), opacity=fade[1])  # fmt: skip
    attacked = known.transform_calculate(top="100").encode(
        x, alt.Y("robust:Q", title="robust accuracy, %"), alt.Y2("top:Q"), color=alt.value(ORANGE),
        opacity=alt.value(0.13),
    )  # fmt: skip
    edge = base.transform_filter("isValid(datum.certified)").mark_line(strokeWidth=1.2, clip=True)
    edge = edge.encode(x, alt.Y("certified:Q", title="robust accuracy, %"), color=colour, detail="series:N")
    sides = [certified, unknown, *([attacked] if len(view.group) == 1 else []), edge, *ends] if bounded else [band]
    ruler = base.transform_filter(hover).mark_rule(strokeDash=[2, 3]).encode(x)
    first = lines[0].add_params(legend) if len(view.group) > 1 else lines[0]
    marks = first, *lines[1 : len(view.group)], ruler, points.add_params(hover, click)
    return alt.layer(*sides, *marks, *draw_pin(axis, label=True))


def draw_histogram(view: View) -> Chart:
    """Draw the number of samples by margin; those above the pinned ε fade."""
    width = view.axis.bin_width
    binned = (
        selected_series(view, "rows")
        .transform_filter(enc.IN_SELECTED_CLASS)
        .transform_calculate(bin=f"max(0, ceil(datum.d / {width} - 1e-9) - 1)", side=enc.SIDE_OF_PIN)
        .transform_aggregate(count="sum(n)", groupby=["bin", "side"])
        .transform_calculate(
            x=f"datum.bin * {width} * unit_scale", x2=f"(datum.bin + 1) * {width} * unit_scale",
            low=view.axis.text(f"datum.bin * {width}"), high=view.axis.text(f"(datum.bin + 1) * {width}"),
        )
    )  # fmt: skip
    bars = binned.mark_bar(color=BLUE, stroke=THIN, strokeWidth=1, clip=True, binSpacing=2).encode(
        margin_x(view.axis, bin="binned"), alt.X2("x2:Q"),
        alt.Y("count:Q", title="samples", axis=alt.Axis(tickMinStep=1, tickCount=5)),
        fillOpacity=opacity_if("datum.side === 'above'", 0.15, 0.85), order=alt.Order("side:N", sort="descending"),
        tooltip=tooltips(("low:N", "margin from"), ("high:N", "to"), ("count:Q", "samples"),
                         ("side:N", "relative to the pinned ε")),
    )  # fmt: skip
    return alt.layer(bars, *draw_pin(view.axis))


def draw_confidence(view: View) -> Chart:
    """Draw margin against confidence on a logarithmic axis of 1 - confidence."""
    axis = view.axis
    base = (
        selected_series(view, "rows")
        .transform_filter(f"{enc.IN_SELECTED_CLASS} && datum.d <= {axis.limit}")
        .transform_calculate(y="datum.d * unit_scale", margin=axis.text("datum.d"), side=enc.SIDE_OF_PIN,
                             confidence="format(1 - datum.u, '.5%')")
    )  # fmt: skip
    decades = [10.0**-k for k in range(11)]
    smallest = min(view.datasets["rows"].columns["u"], default=0.1)
    end = max((decade for decade in decades if decade <= smallest * 1.0001), default=decades[-1])
    x = alt.X("u:Q", title="confidence", scale=alt.Scale(type="log", domain=[end, 1], reverse=True, nice=False),
              axis=alt.Axis(values=decades, labelExpr=CONFIDENCE_LABEL, grid=False, labelFlush=True))  # fmt: skip
    points = base.mark_point(shape="circle", color=THIN, fill=THIN, strokeWidth=1, opacity=1).encode(
        x, margin_y(axis, "y:Q", scale=margin_scale(axis)),
        fillOpacity=opacity_if("datum.side === 'above'", 0.0, 0.5),
        size=alt.Size("n:Q", scale=alt.Scale(range=[6, 260]), legend=None) if view.binned else alt.value(16),
        tooltip=tooltips(*([] if view.binned else [("name:N", "sample")]), ("from:N", "class"),
                         ("to:N", "adversarial class"), ("margin:N", "margin"), ("confidence:N", "confidence"),
                         ("n:Q", "samples")),
    )  # fmt: skip
    return alt.layer(points, *draw_pin(view.axis, "y"))


def draw_strips(view: View) -> Chart:
    """Draw the margins of each class as a strip, darker for more samples, with quartiles and median."""
    width = view.axis.bin_width
    click = alt.selection_point(name="clicked_class", fields=["from"], toggle=False)
    base = (
        selected_series(view, "strips")
        .transform_calculate(
            x=f"datum.bin * {width} * unit_scale", x2=f"(datum.bin + 1) * {width} * unit_scale",
            n_below=f"isValid(pin) && (datum.bin + 1) * {width} <= pin * 1.000001 ? datum.n : 0",
            low="datum.q1 * unit_scale", median="datum.q2 * unit_scale", high="datum.q3 * unit_scale",
            from_text=view.axis.text(f"datum.bin * {width}"), to_text=view.axis.text(f"(datum.bin + 1) * {width}"),
            median_text=view.axis.text("datum.q2"),
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
        tooltip=tooltips(("from:N", "class"), ("from_text:N", "margin from"), ("to_text:N", "to"),
                         ("n:Q", "samples"), ("of:Q", "samples of the class"), ("median_text:N", "median"),
                         ("share_below:N", "below the pinned ε")),
    )  # fmt: skip
    once = base.transform_filter("datum.first == 1")
    if len(view.shown) < len(view.classes):  # the weakest have few samples, all near 0: medians, on their own scale
        return _draw_medians(view, once, y, click)
    quartiles = once.mark_rule(strokeWidth=1.5, clip=True).encode(alt.X("low:Q"), alt.X2("high:Q"), y)
    median = once.mark_tick(thickness=3, clip=True).encode(alt.X("median:Q"), y)
    layers = alt.layer(strips.add_params(click), quartiles, median, *draw_pin(view.axis))
    return layers.properties(height=max(120, 26 * view.strips))


def _draw_medians(view: View, base: alt.Chart, y: alt.Y, click: alt.Parameter) -> Chart:
    """Draw the median of each class as a bar, with its quartiles if it has enough samples."""
    columns, enough = view.datasets["strips"].columns, MIN_QUARTILES
    highest = zip(columns["q2"], columns["q3"], columns["of"], strict=True)
    largest = max((q3 if of >= enough else q2 for q2, q3, of in highest), default=1.0)
    scale = alt.Scale(domain=[0, alt.ExprRef(f"{largest * 1.05} * unit_scale")], nice=False)
    labels = view.axis.labels(end=largest * 1.05, grid=False)
    bars = base.mark_bar(color=BLUE, height=14, cursor="pointer").encode(
        alt.X("median:Q", title=f"median margin, {view.axis.symbol}", scale=scale, axis=labels), y,
        tooltip=tooltips(("from:N", "class"), ("of:Q", "samples"), ("median_text:N", "median margin")),
    )  # fmt: skip
    many = base.transform_filter(f"datum.of >= {enough}")
    quartiles = many.mark_rule(strokeWidth=1.5, clip=True).encode(alt.X("low:Q", scale=scale), alt.X2("high:Q"), y)
    return alt.layer(bars.add_params(click), quartiles).properties(height=24 * view.strips)


def draw_matrix(view: View) -> Chart:
    """Draw the number of samples per class and adversarial class, below the pinned ε if there is one."""
    pairs = alt.LookupData(data=alt.NamedData(name=view.dataset_name("pairs")), key="pair", fields=["all", "median"])
    base = (
        selected_series(view, "rows")
        .transform_filter(f"!isValid(pin) || datum.d <= {WITHIN_PIN}")
        .transform_aggregate(count="sum(n)", groupby=["series", "from", "to"])
        .transform_calculate(pair="datum.series + ' ' + datum.from + ' ' + datum.to")
        .transform_lookup(lookup="pair", from_=pairs)
        .transform_filter("isValid(datum.all)")
        .transform_calculate(median_text=view.axis.text("datum.median"))
    )
    few, most = len(view.shown) <= MAX_LABELLED, max(view.datasets["pairs"].columns["all"], default=1)
    scale = alt.Scale(domain=view.shown)
    angle = -90 if not few else 0 if max(map(len, view.shown), default=0) <= MAX_UPRIGHT else -45
    x = alt.X("to:N", title="adversarial class", scale=scale, axis=class_labels(angle, every=few))
    y = alt.Y("from:N", title="class", scale=scale, axis=class_labels())
    cells = base.mark_rect(color=BLUE).encode(
        x, y, opacity=alt.Opacity("count:Q", scale=alt.Scale(domain=[0, most], range=[0.08, 0.7]), legend=None),
        tooltip=tooltips(("from:N", "class"), ("to:N", "adversarial class"), ("count:Q", "samples"),
                         ("all:Q", "at any distance"), ("median_text:N", "their median margin")),
    )  # fmt: skip
    numbers = [base.mark_text(fontSize=11).encode(x, y, text="count:Q")] if few else []
    return alt.layer(cells, *numbers).properties(height=max(120, 26 * len(view.shown)))


def draw_paired(view: View) -> Chart:
    """Draw the margin of each shared sample in the first run and in the others; the pinned ε splits it into sides."""
    axis = view.axis
    base = alt.Chart(alt.NamedData(name=view.dataset_name("paired")))
    base = base.transform_filter("datum.a > 0 && datum.b > 0").transform_calculate(
        x="datum.a * unit_scale", y="datum.b * unit_scale", a_text=axis.text("datum.a"), b_text=axis.text("datum.b"),
        change=f"!isValid(pin) || (datum.a > {WITHIN_PIN}) === (datum.b > {WITHIN_PIN}) ? 'same' : "
            f"datum.b > {WITHIN_PIN} ? 'gained' : 'lost'",
    )  # fmt: skip
    first, others = view.series_names[0], view.series_names[1:MAX_COMPARED]
    across = _title(first, "the first run", axis.symbol)
    up = _title(others[0] if len(others) == 1 else "the other run", "the other run", axis.symbol)
    scale, labels = _log_scale(view), axis.log_labels(grid=False)
    legend = alt.Legend(title=None) if len(others) > 1 else None
    colours = alt.Scale(domain=others, range=list(PALETTE[1:]))
    points = base.mark_point(size=30, clip=True, opacity=1, strokeWidth=1.2).encode(
        alt.X("x:Q", title=across, scale=scale, axis=labels), alt.Y("y:Q", title=up, scale=scale, axis=labels),
        stroke=alt.Stroke("series:N", scale=colours, legend=legend),
        fill=alt.Fill("series:N", scale=colours, legend=legend),
        fillOpacity=opacity_if("datum.change === 'same'", 0.0, 1.0),
        shape=alt.Shape("series:N", scale=alt.Scale(domain=others), legend=legend),
        tooltip=tooltips(("name:N", "sample"), ("from:N", "class"), ("a_text:N", "margin, first run"),
                         ("series:N", "other run"), ("b_text:N", "its margin"), ("change:N", "at the pinned ε")),
    )  # fmt: skip
    ends = alt.Chart(alt.InlineData(values=[{"end": 1e-9}, {"end": 1e9}])).transform_calculate(
        x="datum.end * unit_scale"
    )
    diagonal = ends.mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1, clip=True).encode(
        alt.X("x:Q", scale=scale, axis=labels, title=across), alt.Y("x:Q", scale=scale, axis=labels)
    )
    layers = alt.layer(diagonal, points, *draw_pin(axis), *draw_pin(axis, "y"))
    return layers.properties(height=SQUARE, usermeta={"square": True})


def _title(name: str, short: str, symbol: str) -> str:
    """Return the title of an axis with the margins of a run, by a short name if its own is too long."""
    title = f"margin of {name}, {symbol}"
    return title if len(title) < MAX_TITLE else f"margin of {short}, {symbol}"


def _log_scale(view: View) -> alt.Scale:
    """Return the scale of both axes of a comparison: all but a few of the smallest margins."""
    columns = view.datasets["paired"].columns
    values = [value for value in (*columns["a"], *columns["b"]) if value]
    ends = (0.8 * np.quantile(values, 0.01), 1.2 * max(values)) if values else (0.1, 1.0)
    domain = [alt.ExprRef(f"{end:.4g} * unit_scale") for end in ends]
    return alt.Scale(type="log", domain=domain, nice=False)


@dataclass(frozen=True)
class Plot:
    """A chart: its name, the function that draws it, and the datasets that it uses."""

    name: str
    draw: Callable[[View], Chart]
    datasets: tuple[str, ...]

    def to_spec(self, view: View, *, validate: bool = False) -> dict[str, Any]:
        """Return the Vega-Lite spec without data. Validation is slow: for tests only."""
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
    Plot("paired", draw_paired, ("paired",)),
    Plot("distance", draw_distance, ("trace", "spans")),
    Plot("constraint", draw_constraint, ("trace", "spans")),
    Plot("progress", draw_progress, ("trace", "spans")),
)


def plots_with_data(view: View) -> list[Plot]:
    """Return the plots that have data."""
    used = {plot: [name for name in plot.datasets if name != "spans"] for plot in PLOTS}  # few attacks have phases
    drawn = [plot for plot in PLOTS if all(view.datasets[name].columns["series"] for name in used[plot])]
    found = any(best is not None for best in view.datasets["trace"].columns["best"])
    return [plot for plot in drawn if found or plot.name != "progress"]
