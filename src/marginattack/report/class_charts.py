"""Charts of classes: the distribution of each class's margins, and the matrix of adversarial classes."""

import altair as alt

from marginattack.report.axes import margin_x
from marginattack.report.datasets import View
from marginattack.report.encodings import Chart, draw_pin, parameters, selected_series, tooltips
from marginattack.report.theme import BLUE

MAX_LABELLED = 14  # classes of a matrix whose cells have room for numbers
AXIS = {"labelLimit": 120, "domain": False, "ticks": False}


def chart_height(view: View) -> int:
    """Return the height of a chart with one row per class, in pixels."""
    return max(120, 26 * len(view.shown))


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
    y = alt.Y("from:N", title="class", sort=order, axis=alt.Axis(**AXIS))
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
    layers = alt.layer(strips.add_params(click), quartiles, median, *draw_pin()).properties(height=chart_height(view))
    return layers.add_params(*parameters(view, "unit_scale", "pin", "selected_class", "class_order", "series"))


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
    x = alt.X("to:N", title="adversarial class", scale=scale, axis=alt.Axis(**AXIS, labelAngle=0 if few else -90))
    y = alt.Y("from:N", title="class", scale=scale, axis=alt.Axis(**AXIS))
    cells = base.mark_rect(color=BLUE).encode(
        x, y, opacity=alt.Opacity("count:Q", scale=alt.Scale(domainMin=0, range=[0.08, 0.7]), legend=None),
        tooltip=tooltips(("from:N", "class"), ("to:N", "adversarial class"), ("count:Q", "samples"),
                         ("all:Q", "at any distance"), ("scaled_median:Q", "their median margin", ".4~g")),
    )  # fmt: skip
    numbers = [base.mark_text(fontSize=11).encode(x, y, text="count:Q")] if few else []
    layers = alt.layer(cells, *numbers).properties(height=chart_height(view))
    return layers.add_params(*parameters(view, "unit_scale", "pin", "series"))
