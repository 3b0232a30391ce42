"""Charts of convergence: what the attack did to a few samples, query by query (Figure 3 of the paper)."""

import altair as alt

from marginattack.report.axes import margin_y
from marginattack.report.datasets import View
from marginattack.report.encodings import Chart, opacity_if, parameters, selected_series, tooltips
from marginattack.report.theme import BLUE, GREEN, GREY, ORANGE

MOVES = {"start": ("diamond", GREY), "restoration": ("circle", BLUE), "projection": ("triangle-up", ORANGE),
         "closing": ("square", GREEN)}  # fmt: skip


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
    base = selected_series(view, "trace").transform_filter("isValid(datum.best)")
    lines = base.transform_calculate(y="datum.best * unit_scale").mark_line(
        interpolate="step-after", color=BLUE, strokeWidth=1.8
    )
    encoded = lines.encode(
        alt.X("passes:Q", title="passes (forwards + backwards)", axis=alt.Axis(grid=False, tickCount=8)),
        margin_y(view.axis, "y:Q", "smallest distance so far", scale=alt.Scale(zero=False)),
        detail="id:N", opacity=opacity_if("datum.id === sample", 1.0, 0.45),
        tooltip=tooltips(("id:Q", "sample"), ("passes:Q", "passes"), ("y:Q", "smallest distance so far", ".4~g")),
    )  # fmt: skip
    return alt.layer(encoded).add_params(*parameters(view, "unit_scale", "series", "sample"))


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
    return alt.layer(line, points).add_params(*parameters(view, "unit_scale", "series", "sample"))
