"""The paper's four figures in docs/method.md, from runs.

    python experiments/pictures.py

writes to docs/img: paradigms.svg (the paper's Figure 1: the adversarial examples of every attack for ℓ2 on a
two-dimensional problem), path.svg (Figure 2: restorations and projections at a curved boundary), convergence.svg
(Figure 3: norm and constraint of the recorded path of a CIFAR-10 image) and shapes.svg (Figure 4: shapes of a boundary
that the convergence theorem permits, and one that it does not).
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import torch
import vl_convert
from torch import Tensor, nn

from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.marginattack import MarginAttack
from marginattack.attacks.pgd import FixedRadiusAttack
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.core.problem import Observation, Observer
from marginattack.core.schedules import Constant, Schedule
from marginattack.execution.session import open_session
from marginattack.report.encodings import Chart
from marginattack.report.theme import BLUE, GREEN, GREY, ORANGE, PALETTE, vega_config
from marginattack.report.vega import vega_lite_version

ROOT = Path(__file__).parents[1]
IMAGES, RECORD = ROOT / "docs" / "img", ROOT / "experiments" / "results" / "convergence.json"
Curve: TypeAlias = Callable[[Any], Any]
Row: TypeAlias = dict[str, Any]


class Boundary(nn.Module):
    """Two classes with the boundary y = g(x): c = u + bend u², u = g(x) − y."""

    def __init__(self, g: Curve, bend: float = 0.0) -> None:
        super().__init__()
        self.g, self.bend = g, bend

    def forward(self, points: Tensor) -> Tensor:
        u = self.g(points[:, 0]) - points[:, 1]
        c = u + self.bend * u * u.abs()
        return torch.stack([c, torch.zeros_like(c)], dim=1)


class Path2D(Observer):
    """Every point that is queried, and the move that led there."""

    def __init__(self) -> None:
        self.points: list[tuple[list[float], str]] = []
        self.c: list[float] = []
        self.move = ""

    def mark(self, move: str) -> None:
        self.move = move

    def record(self, query: Observation) -> None:
        self.points.append((query.points[0].tolist(), self.move))
        self.c.append(query.c[0].item())


def trace_attack(
    model: nn.Module, x0: list[float], start: list[float], moves: int, beta: Schedule
) -> tuple[list[Row], list[float]]:
    """The moves of MarginAttack from a start, as arrows, and the nearest adversarial point found."""
    attack = MarginAttack(moves=moves, closing=2, beta=beta)
    path = Path2D()
    with open_session(Classifier(model, bounds=(-4.0, 4.0))) as session:
        batch = session.validate(torch.tensor([x0], dtype=torch.float64), [0])
        problem = session.problem(batch, L2, observer=path)
        problem.solve(lambda whole: attack.run(whole, torch.tensor([start], dtype=torch.float64), moves, scans=0))
    arrows = []
    for (a, _), (b, move) in pairwise(path.points):
        length = float(np.hypot(b[0] - a[0], b[1] - a[1]))
        turn = float(np.degrees(np.arctan2(b[0] - a[0], b[1] - a[1])))
        kind = "projection" if move == "projection" else "restoration"
        arrows.append({"x": a[0], "y": a[1], "x2": b[0], "y2": b[1], "move": kind, "turn": turn, "length": length})
    return arrows, problem.incumbent.points[0].tolist()


def curve_points(g: Curve, ends: tuple[float, float], lift: float = 0.0, **more: Any) -> list[Row]:
    return [{"x": float(x), "y": float(g(x)) + lift, **more} for x in np.linspace(*ends, 161)]


def chart(rows: list[Row]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def axes(x: tuple[float, float], y: tuple[float, float]) -> tuple[alt.X, alt.Y]:
    return (alt.X("x:Q", axis=None, scale=alt.Scale(domain=list(x), nice=False)),
            alt.Y("y:Q", axis=None, scale=alt.Scale(domain=list(y), nice=False)))  # fmt: skip


def path_layers(arrows: list[Row], x: alt.X, y: alt.Y, head: float, legend: bool) -> list[alt.Chart]:
    """Arrows: restorations solid, projections dashed."""
    kinds = ["restoration", "projection"]
    shown = alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=300) if legend else None
    colour = alt.Color("move:N", scale=alt.Scale(domain=kinds, range=[BLUE, ORANGE]), legend=shown)
    dash = alt.StrokeDash("move:N", scale=alt.Scale(domain=kinds, range=[[1, 0], [4, 3]]), legend=shown)
    shafts = (
        chart(arrows)
        .mark_rule(strokeWidth=2, clip=True)
        .encode(x, y, x2="x2:Q", y2="y2:Q", color=colour, strokeDash=dash)
    )
    heads = chart([{**a, "x": a["x2"], "y": a["y2"]} for a in arrows if a["length"] > head])
    tips = heads.mark_point(shape="triangle-up", filled=True, size=70, opacity=1, clip=True).encode(
        x, y, color=alt.Color("move:N", scale=alt.Scale(domain=kinds, range=[BLUE, ORANGE]), legend=None),
        angle=alt.Angle("turn:Q", scale=None),
    )  # fmt: skip
    return [shafts, tips]


def label_points(
    points: list[tuple[float, float, str]], x: alt.X, y: alt.Y, colour: str, dx: int, dy: int
) -> list[alt.Chart]:
    rows = [{"x": a, "y": b, "name": name} for a, b, name in points]
    dots = chart(rows).mark_point(filled=True, size=90, color=colour, opacity=1).encode(x, y)
    return [dots, chart(rows).mark_text(dx=dx, dy=dy, align="left", fontSize=13).encode(x, y, text="name:N")]


def draw_path() -> Chart:
    """Figure 2: the path along a curved boundary to the nearest point."""

    def g(x: Any) -> Any:
        return 0.9 + 0.22 * (x - 0.1) ** 2 + 0.05 * x**3

    bend, x0 = 0.9, [0.0, -0.35]
    start = [-1.9, -0.35]
    arrows, best = trace_attack(Boundary(g, bend), x0, start, 18, Constant(0.45))
    x, y = axes((-2.2, 1.5), (-0.75, 2.1))
    levels = (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8)
    contours = [row for k, u in enumerate(levels) for row in curve_points(g, (-2.2, 1.5), -u, level=k)]
    grey = chart(contours).mark_line(strokeWidth=1, color=GREY, opacity=0.35, clip=True).encode(x, y, detail="level:N")
    black = chart(curve_points(g, (-2.2, 1.5))).mark_line(strokeWidth=3, color="#1c1f24").encode(x, y)
    radius = float(np.hypot(best[0] - x0[0], best[1] - x0[1]))
    ball = chart(circle(x0, radius)).mark_line(strokeDash=[2, 3], color=GREEN, clip=True).encode(x, y, order="order:Q")
    layers = [grey, ball, black, *path_layers(arrows, x, y, 0.02, legend=True)]
    layers += label_points([(x0[0], x0[1], "the input")], x, y, "#b3261e", 9, 0)
    layers += label_points([(start[0], start[1], "start")], x, y, GREY, 9, 6)
    layers += label_points([(best[0], best[1], "the nearest point found")], x, y, GREEN, -75, -34)
    return alt.layer(*layers).properties(width=640, height=493)


def circle(centre: list[float], radius: float) -> list[Row]:
    turn = np.linspace(0, 2 * np.pi, 121)
    return [
        {"x": float(centre[0] + radius * np.cos(t)), "y": float(centre[1] + radius * np.sin(t)), "order": i}
        for i, t in enumerate(turn)
    ]


SHAPES: dict[str, tuple[str, Curve, float]] = {
    "convex": ("permitted: convex", lambda x: 1 + 0.6 * x**2, 0.9),
    "flat": ("permitted: flat", lambda x: 1 + 0.0 * x, 0.9),
    "concave": ("permitted: concave, less than the ball", lambda x: 1 - 0.22 * x**2, 0.9),
    "wavy": ("permitted: both", lambda x: 1 + 0.12 * x**2 - 0.14 * x**3, 0.8),
    "too concave": ("prohibited: bends more than the ball", lambda x: 1 - 0.95 * x**2, 0.12),
}


def draw_shape(name: str) -> Chart:
    """Figure 4: one shape, and MarginAttack from a point of the boundary near the tangent point."""
    title, g, aside = SHAPES[name]
    arrows, best = trace_attack(Boundary(g, 0.3), [0.0, 0.0], [aside, float(g(aside))], 40, Constant(0.35))
    x, y = axes((-1.35, 1.35), (-1.15, 1.75))
    slides = [row for row in arrows if row["length"] > 0.01]
    ball = chart(circle([0.0, 0.0], 1.0)).mark_line(strokeDash=[2, 3], color=GREY).encode(x, y, order="order:Q")
    black = chart(curve_points(g, (-1.35, 1.35))).mark_line(strokeWidth=3, color="#1c1f24", clip=True).encode(x, y)
    layers = [ball, black, *path_layers(slides, x, y, 0.045, legend=False)]
    layers += label_points([(0.0, 0.0, "the input")], x, y, "#b3261e", 8, 0)
    tangent = chart([{"x": 0.0, "y": 1.0}]).mark_point(
        shape="circle", size=150, strokeWidth=2, color=GREEN, filled=False
    )
    found = chart([{"x": best[0], "y": best[1]}]).mark_point(filled=True, size=70, color=GREEN, opacity=1)
    layers += [tangent.encode(x, y), found.encode(x, y)]
    text = alt.TitleParams(title.split(": ")[0], subtitle=title.split(": ")[1], fontSize=13, subtitleFontSize=11)
    return alt.layer(*layers).properties(width=190, height=204, title=text)


def curved(x: Any) -> Any:
    """The boundary of Figure 1."""
    return 0.8 + 0.45 * (x - 0.6) ** 2 + 0.12 * x**3


RADIUS = 1.0  # of the attacks within a radius
SYMBOLS = ["circle", "square", "cross", "diamond", "triangle-up", "triangle-down", "triangle-left", "triangle-right"]


def attacks_by_kind() -> tuple[dict[str, Attack], dict[str, Attack]]:
    """Every attack for ℓ2 that moves all coordinates, without other libraries: for the margin, within a radius."""
    margin, fixed = dict[str, Attack](), dict[str, Attack]()
    for name, attack in ATTACKS.items():
        if "l2" not in attack.norms or name in ("boundary", "one-pixel", "jsma"):
            continue
        if issubclass(attack, FixedRadiusAttack):
            fixed[name] = attack(eps=RADIUS, stop=False)  # type: ignore[call-arg]
        else:
            margin[name] = attack()
    return margin, fixed


def find_example(attack: Attack) -> tuple[list[float], list[float]]:
    """For the origin: the nearest adversarial point that the attack queried, and the one with the least c."""
    path = Path2D()
    with open_session(Classifier(Boundary(curved, 0.3), bounds=(-4.0, 4.0))) as session:
        batch = session.validate(torch.zeros(1, 2, dtype=torch.float64), [0])
        problem = session.problem(batch, L2, observer=path)
        problem.solve(attack)
    return problem.incumbent.points[0].tolist(), min(zip(path.c, path.points, strict=True))[1][0]


def draw_paradigm(title: str, subtitle: str, attacks: dict[str, Attack], *, least: bool) -> Chart:
    """Figure 1: the adversarial example of every attack, and the ball."""
    x, y = axes((-1.3, 1.6), (-1.15, 1.75))
    found = {name: find_example(attack)[least] for name, attack in attacks.items()}
    names = list(found)
    rows = [{"x": point[0], "y": point[1], "attack": name} for name, point in found.items()]
    radius = RADIUS if least else min(float(np.hypot(x, y)) for x, y in found.values())
    ball = chart(circle([0.0, 0.0], radius)).mark_line(strokeDash=[2, 3], color=GREY).encode(x, y, order="order:Q")
    black = chart(curve_points(curved, (-1.3, 1.6))).mark_line(strokeWidth=3, color="#1c1f24", clip=True).encode(x, y)
    legend = alt.Legend(title=None, orient="bottom", columns=4)
    dots = chart(rows).mark_point(size=110, strokeWidth=2, opacity=0.9).encode(
        x, y, color=alt.Color("attack:N", scale=alt.Scale(domain=names, range=list(PALETTE)), legend=legend),
        shape=alt.Shape("attack:N", scale=alt.Scale(domain=names, range=SYMBOLS), legend=legend),
    )  # fmt: skip
    layers = [ball, black, *label_points([(0.0, 0.0, "the input")], x, y, "#b3261e", 9, 0), dots]
    text = alt.TitleParams(title, subtitle=subtitle, fontSize=13, subtitleFontSize=11)
    return alt.layer(*layers).properties(width=380, height=380, title=text)


def draw_paradigms() -> alt.HConcatChart:
    """Figure 1: attacks that look for the nearest point of the boundary, and attacks within a radius."""
    margin, fixed = attacks_by_kind()
    left = draw_paradigm("zero-confidence", "the nearest point found", margin, least=False)
    right = draw_paradigm("fixed perturbation", "the most adversarial point found", fixed, least=True)
    both = alt.hconcat(left, right, spacing=20)
    independent: alt.HConcatChart = both.resolve_scale(color="independent", shape="independent")
    return independent


MOVES_SHOWN = 40


def draw_curve(rows: list[Row], field: str, title: str) -> Chart:
    """Figure 3: one curve; circles after restorations, triangles after projections, smoothed in orange."""
    x = alt.X("move:Q", title="move")
    y = alt.Y(f"{field}:Q", title=title)
    grey = chart(rows).mark_line(color=GREY, strokeWidth=1).encode(x, y)
    shape = alt.Shape(
        "at:N", scale=alt.Scale(domain=["restoration", "projection"], range=["circle", "triangle-up"]),
        legend=alt.Legend(title=None, orient="top", values=["restoration", "projection"]),
    )  # fmt: skip
    points = chart(rows[1:]).mark_point(color=GREY, filled=True, size=45, opacity=1).encode(x, y, shape=shape)
    smooth = chart(rows).mark_line(color=ORANGE, strokeWidth=2.5).encode(x, y=alt.Y("smooth:Q", title=title))
    smooth = smooth.transform_window(smooth=f"mean({field})", frame=[-2, 2])
    return alt.layer(grey, points, smooth).properties(width=380, height=260)


def draw_convergence() -> alt.HConcatChart:
    """Figure 3: perturbation norm and constraint by move, from the record of the experiment."""
    path = json.loads(RECORD.read_text())["numbers"]["path"]
    kinds, norms, values = (path[name][: MOVES_SHOWN + 1] for name in ("move", "distance", "c"))
    rows = [
        {"move": k, "at": kind or "start", "norm": 255 * norm, "c": c}
        for k, (kind, norm, c) in enumerate(zip(kinds, norms, values, strict=True))
    ]
    curves = (draw_curve(rows, "norm", "perturbation norm, pixels in [0, 255]"), draw_curve(rows, "c", "constraint c"))
    return alt.hconcat(*curves, spacing=20)


def write(picture: Any, name: str) -> None:
    spec = {**picture.to_dict(), "config": {**vega_config("sans-serif"), "background": "white", "padding": 8}}
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / name).write_text(vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version()))


def main() -> None:
    """Write the figures."""
    write(draw_paradigms(), "paradigms.svg")
    write(draw_path(), "path.svg")
    write(draw_convergence(), "convergence.svg")
    write(alt.hconcat(*(draw_shape(name) for name in SHAPES), spacing=14), "shapes.svg")


if __name__ == "__main__":
    main()
