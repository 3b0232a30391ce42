"""Charts of convergence: what the attack did to some samples, look by look (the paper's Figure 3)."""

import altair as alt

from marginattack.report.datasets import View
from marginattack.report.look import BLUE, GREEN, GREY, ORANGE, Chart, chosen, parameters
from marginattack.report.summary import SYMBOL

MOVES = {"start": ("diamond", GREY), "restoration": ("circle", BLUE), "projection": ("triangle-up", ORANGE),
         "closing": ("square", GREEN)}  # fmt: skip


def _marked(view: View, y: alt.Y) -> Chart:
    """A value by look, each point marked by the move that led there."""
    base = (
        chosen(view, "trace").transform_filter("datum.id === sample").transform_calculate(size="datum.distance * times")
    )
    looks = [MOVES.get(move, ("cross", GREY)) for move in view.moves]
    shape = alt.Scale(domain=view.moves, range=[shape for shape, _ in looks])
    colour = alt.Scale(domain=view.moves, range=[colour for _, colour in looks])
    x = alt.X("look:Q", title="look at the model", axis=alt.Axis(grid=False, tickMinStep=1))
    legend = alt.Legend(title=None, columns=4) if len(view.moves) > 1 else None
    points = base.mark_point(filled=True, size=34, opacity=0.9).encode(
        x, y, shape=alt.Shape("move:N", scale=shape, legend=legend),
        color=alt.Color("move:N", scale=colour, legend=legend),
        tooltip=[alt.Tooltip("move:N", title="after"), alt.Tooltip("look:Q", title="look"),
                 alt.Tooltip("passes:Q", title="passes"), alt.Tooltip("size:Q", title="distance", format=".4~g"),
                 alt.Tooltip("c:Q", title="constraint", format=".3~g")],
    )  # fmt: skip
    line = base.mark_line(strokeWidth=1, color=GREY, opacity=0.6).encode(x, y)
    return alt.layer(line, points).add_params(*parameters(view, "times", "series", "sample"))


def sizes(view: View) -> Chart:
    """How far from the input each point is that was looked at."""
    title = f"distance, {SYMBOL.get(view.norm, view.norm)}"
    return _marked(view, alt.Y("size:Q", title=title, axis=alt.Axis(format="~g", tickCount=6)))


def constraint(view: View) -> Chart:
    """The constraint there: below 0 the point is adversarial."""
    scale = alt.Scale(type="symlog", constant=0.01)
    axis = alt.Axis(format="~g", values=[-10, -1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10, 100])
    return _marked(view, alt.Y("c:Q", title="constraint c (below 0: adversarial)", scale=scale, axis=axis))


def progress(view: View) -> Chart:
    """The best margin known by passes spent, a line a sample."""
    base = chosen(view, "trace").transform_filter("isValid(datum.best)").transform_calculate(y="datum.best * times")
    lines = base.mark_line(interpolate="step-after", color=BLUE, strokeWidth=1.8).encode(
        alt.X("passes:Q", title="passes spent (forwards + backwards)", axis=alt.Axis(grid=False, tickCount=8)),
        alt.Y("y:Q", title=f"best margin so far, {SYMBOL.get(view.norm, view.norm)}", scale=alt.Scale(zero=False),
              axis=alt.Axis(format="~g", tickCount=6)),
        detail="id:N", opacity=alt.when("datum.id === sample").then(alt.value(1)).otherwise(alt.value(0.45)),
        tooltip=[alt.Tooltip("id:Q", title="sample"), alt.Tooltip("passes:Q", title="passes"),
                 alt.Tooltip("y:Q", title="best margin", format=".4~g")],
    )  # fmt: skip
    return alt.layer(lines).add_params(*parameters(view, "times", "series", "sample"))
