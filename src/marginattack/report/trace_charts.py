"""Charts of traces, an attack's queries on a few samples: distance, constraint and incumbent, by phase or move."""

import altair as alt

from marginattack.report.axes import margin_y
from marginattack.report.convergence import PHASES
from marginattack.report.datasets import View
from marginattack.report.encodings import Chart, selected_series, tooltips
from marginattack.report.theme import BLUE, GREEN, GREY, ORANGE, PALETTE

ROOM = 12  # pixels between the extreme points of a chart and its edges
STRIPE = 7  # pixels of the stripe above a phase
MOVES = {"start": ("diamond", GREY), "restoration": ("circle", BLUE), "projection": ("triangle-up", ORANGE),
         "closing": ("square", GREEN)}  # fmt: skip


def draw_distance(view: View) -> Chart:
    """Draw the distance of each queried point from the input."""
    return _draw_queries(view, margin_y(view.axis, "scaled_distance:Q", "distance", scale=alt.Scale(padding=ROOM)))


def draw_constraint(view: View) -> Chart:
    """Draw the constraint at each queried point: below 0 the point is adversarial."""
    scale = alt.Scale(type="symlog", constant=0.01, padding=ROOM)
    labels = alt.Axis(format=".4~r", values=[-100, -10, -1, -0.1, 0, 0.1, 1, 10, 100])
    return _draw_queries(view, alt.Y("c:Q", title="constraint c (below 0: adversarial)", scale=scale, axis=labels))


def draw_progress(view: View) -> Chart:
    """Draw the smallest distance found so far against passes, one line per sample."""
    found = selected_series(view, "trace").transform_filter("isValid(datum.best)")
    found = found.transform_calculate(y="datum.best * unit_scale", text=view.axis.text("datum.best"))
    x = alt.X("passes:Q", title="passes (forwards + backwards)", axis=alt.Axis(grid=False, tickCount=8))
    y = margin_y(view.axis, "y:Q", "smallest distance so far", scale=alt.Scale(zero=False, padding=ROOM))
    tooltip = tooltips(("id:Q", "sample"), ("passes:Q", "passes"), ("text:N", "smallest distance so far"))
    lines = [
        found.transform_filter(f"datum.id {sign} sample")
        .mark_line(interpolate="step-after", color=colour, strokeWidth=width)
        .encode(x, y, detail="id:N", tooltip=tooltip)
        for sign, colour, width in (("!==", GREY, 1), ("===", BLUE, 2.4))
    ]
    return alt.layer(*_draw_phases(view, "p1", "p2", "passes (forwards + backwards)"), *lines)


def phase_colours(view: View) -> dict[str, str]:
    """Return the colour of each phase that occurs, in the order of their names in ``PHASES``."""
    if not view.phased:
        return {}
    phases = [*dict.fromkeys([*PHASES, *view.moves])]  # the same colours in all charts
    return {phase: PALETTE[i % len(PALETTE)] for i, phase in enumerate(phases) if phase in view.moves}


def _draw_phases(view: View, start: str, end: str, title: str) -> list[alt.Chart]:
    """Return the phases of the selected sample: bands behind a chart under a stripe in the phase's colour.

    Wide ones are labelled; the page has a legend of all. Empty without phases.
    """
    if not view.phased:
        return []
    spans = selected_series(view, "spans").transform_filter("datum.id === sample")
    texts = {f"{when}_text": f"isValid(datum.{when}) ? {view.axis.text(f'datum.{when}')} : 'none'"
             for when in ("before", "after")}  # fmt: skip
    spans = spans.transform_calculate(middle=f"(datum.{start} + datum.{end}) / 2", **texts)
    colours = phase_colours(view)
    colour = alt.Color("phase:N", scale=alt.Scale(domain=[*colours], range=[*colours.values()]), legend=None)
    x, x2 = alt.X(f"{start}:Q", title=title), alt.X2(f"{end}:Q")
    tooltip = tooltips(("phase:N", "phase"), ("p1:Q", "after passes"), ("p2:Q", "to"),
                       ("before_text:N", "smallest distance before"), ("after_text:N", "after"))  # fmt: skip
    bands = spans.mark_rect(opacity=0.1).encode(x, x2, color=colour, tooltip=tooltip)
    stripes = spans.mark_rect().encode(x, x2, y=alt.value(0), y2=alt.value(STRIPE), color=colour, tooltip=tooltip)
    names = spans.transform_filter("datum.wide === 1").mark_text(angle=270, align="right", dx=-STRIPE - 4, fontSize=11)
    return [bands, stripes, names.encode(alt.X("middle:Q", title=title), y=alt.value(0), text="phase:N")]


def _draw_queries(view: View, y: alt.Y) -> Chart:
    """Draw a value by query, over the phases, or with a mark for the move that led to each point."""
    base = selected_series(view, "trace").transform_filter("datum.id === sample")
    text = view.axis.text("datum.distance")
    base = base.transform_calculate(scaled_distance="datum.distance * unit_scale", text=text)
    x = alt.X("query:Q", title="query", axis=alt.Axis(grid=False, tickMinStep=1))
    tooltip = tooltips(("move:N", "phase" if view.phased else "after"), ("query:Q", "query"), ("passes:Q", "passes"),
                       ("text:N", "distance"), ("c:Q", "constraint", ".3~r"))  # fmt: skip
    line = base.mark_line(strokeWidth=0.8, color=GREY).encode(x, y)
    if view.phased:
        dots = base.mark_circle(size=14, color=BLUE, opacity=1).encode(x, y, tooltip=tooltip)
        return alt.layer(*_draw_phases(view, "q1", "q2", "query"), line, dots)
    marks = [MOVES.get(move, ("cross", GREY)) for move in view.moves]
    shapes = alt.Scale(domain=view.moves, range=[shape for shape, _ in marks])
    colours = alt.Scale(domain=view.moves, range=[colour for _, colour in marks])
    legend = alt.Legend(title=None, columns=4) if len(view.moves) > 1 else None
    points = base.mark_point(filled=True, size=34, opacity=1).encode(
        x, y, shape=alt.Shape("move:N", scale=shapes, legend=legend),
        color=alt.Color("move:N", scale=colours, legend=legend), tooltip=tooltip,
    )  # fmt: skip
    return alt.layer(line, points)
