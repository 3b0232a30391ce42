"""Charts about classes: how their margins are distributed, and which class goes to which."""

import altair as alt

from marginattack.report.datasets import View
from marginattack.report.look import BLUE, Chart, chosen, margins, parameters, pin

LABELLED = 14  # classes of a matrix whose cells have room for numbers


def strips(view: View) -> Chart:
    """The margins of each class: a strip, darker where more samples are, with its quartiles and its median."""
    choose = alt.selection_point(name="choose", fields=["from"], toggle=False)
    under = f"isValid(pin) && (datum.bin + 1) * {view.step} <= pin * 1.000001 ? datum.n : 0"
    base = (
        chosen(view, "strips")
        .transform_calculate(
            x=f"datum.bin * {view.step} * times", x2=f"(datum.bin + 1) * {view.step} * times", counted=under,
            low="datum.q1 * times", mid="datum.q2 * times", high="datum.q3 * times",
            shade="datum.share * (isValid(only) && datum.from !== only ? 0.25 : 1)",
        )
        .transform_joinaggregate(under="sum(counted)", groupby=["from"])
        .transform_calculate(
            key="order === 'median' ? datum.q2 : order === 'below' ? -datum.under / datum.of : datum.number",
            told="isValid(pin) ? format(datum.under / datum.of, '.1%') : 'none pinned'",
        )
    )  # fmt: skip
    rank = alt.EncodingSortField(field="key", op="min", order="ascending")
    y = alt.Y("from:N", title="class", sort=rank, axis=alt.Axis(labelLimit=120, domain=False, ticks=False))
    strip = base.mark_rect(color=BLUE, clip=True, cursor="pointer").encode(
        margins(view), alt.X2("x2:Q"), y,
        opacity=alt.Opacity("shade:Q", scale=alt.Scale(domain=[0, 1], range=[0, 0.85]), legend=None),
        tooltip=[alt.Tooltip("from:N", title="class"), alt.Tooltip("x:Q", title="margin from", format=".4~g"),
                 alt.Tooltip("x2:Q", title="to", format=".4~g"), alt.Tooltip("n:Q", title="samples"),
                 alt.Tooltip("of:Q", title="of the class's"), alt.Tooltip("mid:Q", title="median", format=".4~g"),
                 alt.Tooltip("told:N", title="below the pinned ε")],
    )  # fmt: skip
    one = base.transform_filter("datum.first == 1")
    box = one.mark_rule(strokeWidth=1.5, clip=True).encode(alt.X("low:Q"), alt.X2("high:Q"), y)
    median = one.mark_tick(thickness=3, clip=True).encode(alt.X("mid:Q"), y)
    layers = alt.layer(strip.add_params(choose), box, median, *pin(label=False))
    return layers.properties(height=max(120, 26 * len(view.shown))).add_params(
        *parameters(view, "times", "pin", "only", "order", "series")
    )


def matrix(view: View) -> Chart:
    """How many samples go from which class to which, below the pin if there is one."""
    pairs = alt.LookupData(data=alt.NamedData(name=view.named("pairs")), key="pair", fields=["all", "median"])
    base = (
        chosen(view, "rows")
        .transform_filter("!isValid(pin) || datum.d <= pin")
        .transform_aggregate(count="sum(n)", groupby=["series", "from", "to"])
        .transform_calculate(pair="datum.series + ' ' + datum.from + ' ' + datum.to")
        .transform_lookup(lookup="pair", from_=pairs)
        .transform_filter("isValid(datum.all)")
        .transform_calculate(middle="datum.median * times")
    )
    axis = alt.Axis(labelLimit=120, domain=False, ticks=False, labelAngle=0 if len(view.shown) <= LABELLED else -90)
    x = alt.X("to:N", title="goes to", scale=alt.Scale(domain=view.shown), axis=axis)
    side = alt.Axis(labelLimit=120, domain=False, ticks=False)
    y = alt.Y("from:N", title="class", scale=alt.Scale(domain=view.shown), axis=side)
    cells = base.mark_rect(color=BLUE).encode(
        x, y, opacity=alt.Opacity("count:Q", scale=alt.Scale(domainMin=0, range=[0.08, 0.7]), legend=None),
        tooltip=[alt.Tooltip("from:N", title="class"), alt.Tooltip("to:N", title="goes to"),
                 alt.Tooltip("count:Q", title="samples"), alt.Tooltip("all:Q", title="without the pin"),
                 alt.Tooltip("middle:Q", title="their median margin", format=".4~g")],
    )  # fmt: skip
    layers = [cells]
    if len(view.shown) <= LABELLED:
        layers.append(base.mark_text(fontSize=11).encode(x, y, text="count:Q"))
    whole = alt.layer(*layers).properties(height=max(120, 26 * len(view.shown)))
    return whole.add_params(*parameters(view, "times", "pin", "series"))
