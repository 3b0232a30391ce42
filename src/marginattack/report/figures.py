"""Figures and tables for papers: the page's charts from the same specs, and its numbers."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marginattack.analysis import statistics as stats
from marginattack.report.bundle import vega_lite
from marginattack.report.charts import PLOTS, Plot, drawn
from marginattack.report.datasets import View, views
from marginattack.report.look import config
from marginattack.report.summary import Series, by_norm, class_rows, read

WIDTH = 420
MATHS = {"l0": r"$\ell_0$", "l1": r"$\ell_1$", "l2": r"$\ell_2$", "linf": r"$\ell_\infty$"}
ESCAPED = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
           "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}  # fmt: skip

Row = Sequence[str | int | float]


def figures(run: str | Path) -> Iterator[tuple[str, bytes]]:
    """The name and the content of every file."""
    for view in views(by_norm(read([run]))):
        for plot in PLOTS:
            if drawn(view, plot):
                yield from _figure(view, plot)
        for name, head, rows in _tables(view):
            yield f"{name}-{view.norm}.csv", _csv(head, rows).encode()
            yield f"{name}-{view.norm}.tex", _latex(head, rows).encode()


def _figure(view: View, plot: Plot) -> Iterator[tuple[str, bytes]]:
    import vl_convert

    looks = {"width": WIDTH, "config": {**config("light", "sans-serif"), "background": "white"}}
    spec: dict[str, Any] = {**plot.spec(view), **looks}
    rows = {view.named(name): view.datasets[name].rows() for name in plot.datasets}
    spec["datasets"] = {**spec.get("datasets", {}), **rows}
    version = vega_lite()
    name = f"{plot.name}-{view.norm}"
    yield f"{name}.svg", vl_convert.vegalite_to_svg(spec, vl_version=version).encode()
    yield f"{name}.pdf", vl_convert.vegalite_to_pdf(spec, vl_version=version)
    yield f"{name}.png", vl_convert.vegalite_to_png(spec, vl_version=version, scale=3)


def _tables(view: View) -> Iterator[tuple[str, list[str], list[Row]]]:
    """Name, head and rows of each table."""
    yield (
        "numbers",
        ["run", "norm", "samples", "accuracy, %", "median margin", "from", "to", "nothing found", "passes"],
        [_numbers(series) for series in view.group],
    )
    head = [
        "run",
        "class",
        "samples",
        "lower quartile",
        "median margin",
        "upper quartile",
        "nothing found",
        "goes mostly to",
    ]
    every = [(series.name, row) for series in view.group for row in class_rows(series)]
    yield "classes", head, [(s, r.name, r.n, r.low, r.median, r.high, r.missed, r.goes_to) for s, r in every]
    yield (
        "curve",
        ["run", "epsilon", "robust accuracy, %", "from", "to"],
        [row for s in view.group for row in _curve(s, view)],
    )


def _numbers(series: Series) -> Row:
    low, high = series.median_interval
    return (series.name, series.part.norm, series.seen, 100 * series.accuracy, series.median, low, high,
            series.missed, series.passes)  # fmt: skip


def _curve(series: Series, view: View) -> Iterator[Row]:
    levels = view.step * 2 * np.arange(int(view.top / view.step / 2) + 2)
    for eps, hits in zip(levels, series.holding(levels), strict=True):
        low, high = stats.share(int(hits), series.total)
        yield series.name, float(f"{eps:.6g}"), 100 * int(hits) / max(series.total, 1), 100 * low, 100 * high


def _csv(head: Sequence[str], rows: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return out.getvalue()


def _latex(head: Sequence[str], rows: Sequence[Row]) -> str:
    r"""A tabular for booktabs: \usepackage{booktabs}, then \input it."""
    columns = "".join("l" if rows and isinstance(cell, str) else "r" for cell in (rows[0] if rows else head))
    lines = [r"\begin{tabular}{" + columns + "}", r"\toprule", _line(head), r"\midrule"]
    return "\n".join([*lines, *(_line(row) for row in rows), r"\bottomrule", r"\end{tabular}", ""])


def _line(cells: Row) -> str:
    return " & ".join(_cell(cell) for cell in cells) + r" \\"


def _cell(cell: str | int | float) -> str:
    if isinstance(cell, float):
        return r"$\infty$" if np.isinf(cell) else "--" if np.isnan(cell) else f"{cell:.4g}"
    if isinstance(cell, int):
        return f"{cell:,}".replace(",", r"\,")
    return MATHS[cell] if cell in MATHS else "".join(ESCAPED.get(letter, letter) for letter in cell)
