"""Charts of margins: the robust accuracy curve, the histogram, and margin against confidence."""

import altair as alt

from marginattack.report.axes import margin_scale, margin_x, margin_y
from marginattack.report.datasets import View
from marginattack.report.encodings import (
    IN_SELECTED_CLASS,
    SIDE_OF_PIN,
    Chart,
    draw_pin,
    named_data,
    opacity_if,
    parameters,
    selected_series,
    style_series,
    tooltips,
)
from marginattack.report.theme import BLUE

# label of u = 1 - confidence: in percent down to 0.05 %, then as a power of ten
CONFIDENCE_LABEL = (
    "datum.value > 0.5 ? '0 %' : datum.value > 0.0005 ? format(100 - 100 * datum.value, '.4~g') + ' %' :"
    " '1 − 10⁻' + ['⁰','¹','²','³','⁴','⁵','⁶','⁷','⁸','⁹','¹⁰'][round(-log(datum.value) / LN10)]"
)


def draw_curve(view: View, log: bool = False) -> Chart:
    """Draw robust accuracy against ε; pointing reads a value, a click pins ε, the legend selects series."""
    axis, style = view.axis, style_series(view)
    hover = alt.selection_point(
        name="hover", on="pointerover", clear="pointerout", nearest=True, fields=["eps"], empty=False
    )
    click = alt.selection_point(name="clicked_eps", on="click", nearest=True, fields=["eps"], empty=False, toggle=False)
    legend = alt.selection_point(name="legend", fields=["series"], bind="legend")
    start = axis.log_start if log else 0
    base = named_data(view, "curve").transform_filter(f"datum.eps >= {start} && datum.eps <= {axis.limit}")
    base = base.transform_calculate(x="datum.eps * unit_scale")
    x = alt.X("x:Q", title=f"ε, {axis.symbol}", scale=margin_scale(axis, log=log),
              axis=alt.Axis(format="~g", tickCount=7, grid=False))  # fmt: skip
    y = alt.Y("robust:Q", title="robust accuracy, %", scale=alt.Scale(domain=[0, 100]))
    band = base.mark_area(clip=True).encode(
        x, alt.Y("low:Q", title="robust accuracy, %"), alt.Y2("high:Q"), color=style["color"],
        opacity=opacity_if(legend, 0.2, 0.03),
    )  # fmt: skip
    line = base.mark_line(strokeWidth=2, clip=True).encode(x, y, **style, opacity=opacity_if(legend, 1.0, 0.12))
    points = base.mark_point(size=60, filled=True).encode(
        x, y, color=style["color"], opacity=opacity_if(hover, 1.0, 0.0),
        tooltip=tooltips(("series:N", "run"), ("x:Q", "ε", ".4~g"), ("robust:Q", "robust accuracy, %", ".1f"),
                         ("low:Q", "95 % CI from", ".1f"), ("high:Q", "to", ".1f")),
    )  # fmt: skip
    ruler = base.transform_filter(hover).mark_rule(strokeDash=[2, 3]).encode(x)
    layers = alt.layer(band, line.add_params(legend), ruler, points.add_params(hover, click), *draw_pin(label=True))
    return layers.add_params(*parameters(view, "unit_scale", "pin"))


def draw_log_curve(view: View) -> Chart:
    """Draw the curve with a logarithmic ε axis."""
    return draw_curve(view, log=True)


def draw_histogram(view: View) -> Chart:
    """Draw the number of samples by margin; those above the pinned ε fade."""
    width = view.axis.bin_width
    binned = (
        selected_series(view, "rows")
        .transform_filter(IN_SELECTED_CLASS)
        .transform_calculate(bin=f"max(0, ceil(datum.d / {width} - 1e-9) - 1)", side=SIDE_OF_PIN)
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
    return alt.layer(bars, *draw_pin()).add_params(*parameters(view, "unit_scale", "pin", "selected_class", "series"))


def draw_confidence(view: View) -> Chart:
    """Draw margin against confidence on a logarithmic axis of 1 - confidence."""
    axis = view.axis
    base = (
        selected_series(view, "rows")
        .transform_filter(f"{IN_SELECTED_CLASS} && datum.d <= {axis.limit}")
        .transform_calculate(y="datum.d * unit_scale", side=SIDE_OF_PIN, confidence="format(1 - datum.u, '.5%')")
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
    layers = alt.layer(points, *draw_pin("y"))
    return layers.add_params(*parameters(view, "unit_scale", "pin", "selected_class", "series"))
