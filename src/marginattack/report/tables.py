"""Tables of a view for papers, as CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from marginattack.report.brackets import CLOSED, summarize_brackets
from marginattack.report.datasets import View
from marginattack.report.numbers import format_number
from marginattack.report.series import Series
from marginattack.report.summary import summarize_classes

LATEX_NORMS = {"l0": r"$\ell_0$", "l1": r"$\ell_1$", "l2": r"$\ell_2$", "linf": r"$\ell_\infty$"}
LATEX_ESCAPES = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
                 "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}  # fmt: skip
FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.]+$)")  # text that a spreadsheet would execute; -1 is a number

Row = Sequence[str | int | float]


def build_tables(view: View) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yield the name, the header and the rows of each table; distances are in the unit of the view."""
    scale = view.axis.scale
    header: Row = ("run", "norm", "samples", "accuracy, %", "median margin", "from", "to", "nothing found", "passes")
    yield "numbers", header, [
        (s.name, s.norm, s.seen, 100 * s.accuracy, s.median * scale, *(end * scale for end in s.median_interval),
         s.not_found, s.passes)
        for s in view.group
    ]  # fmt: skip
    header = ("run", "class", "samples", "lower quartile", "median margin", "upper quartile", "nothing found",
              "most common adversarial class")  # fmt: skip
    yield "classes", header, [
        (s.name, row.name, row.n, row.low * scale, row.median * scale, row.high * scale, row.not_found,
         row.adversarial_class)
        for s in view.group for row in summarize_classes(s)
    ]  # fmt: skip
    levels = np.array(view.axis.round_levels(2))
    bounded = [series for series in view.group if series.bounded]
    more: Row = ("certified accuracy, %",) if bounded else ()
    yield "curve", ("run", "epsilon", "robust accuracy, %", "from", "to", *more), [
        (s.name, eps * scale, 100 * row.accuracy, 100 * row.low, 100 * row.high,
         *([100 * certified if certified is not None else float("nan")] if bounded else []))
        for s in view.group
        for eps, row, certified in zip(
            levels.tolist(), s.robust_accuracy(levels), s.certified_accuracy(levels), strict=True)
    ]  # fmt: skip
    if bounded:
        yield from _build_bracket_tables(bounded, scale)


def _build_bracket_tables(bounded: Sequence[Series], scale: float | int) -> Iterator[tuple[str, Row, list[Row]]]:
    """Yield how many brackets are closed, and the widest ones."""
    both = [(series.name, summarize_brackets(series, scale)) for series in bounded]
    names: tuple[str, ...] = (
        "method", "measured", "certified", "median_lower", "median_upper", "median_ratio", "median_kkt",
        "median_spread", "median_estimate",
    )  # fmt: skip
    header: Row = ("run", *(name.replace("_", " ") for name in names), *(f"closed to {s:.0%}" for s in CLOSED))
    yield "brackets", header, [(name, *(b[key] for key in names), *b["closed"].values()) for name, b in both]
    named = any("name" in sample for _, b in both for sample in b["widest"])
    names = ("id", *(("name",) if named else ()), "label", "lower", "upper", "certified_by", "kkt", "spread")
    header = ("run", *(name.replace("_", " ") for name in names))
    yield ("widest", header, [(name, *(s.get(key, "") for key in names)) for name, b in both for s in b["widest"]])


def to_csv(header: Row, rows: Iterable[Row], digits: int | None = None) -> str:
    """Write a table as CSV, with floats rounded to ``digits`` significant digits if given, and without formulas."""

    def clean(cell: str | int | float) -> str | int | float:
        if isinstance(cell, float):
            return f"{cell:.{digits}g}" if digits else cell
        return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([clean(cell) for cell in row] for row in (header, *rows))
    return out.getvalue()


def to_latex(header: Row, rows: Sequence[Row]) -> str:
    r"""Write a table as a tabular that needs \usepackage{booktabs}."""
    columns = "".join("l" if rows and isinstance(cell, str) else "r" for cell in (rows[0] if rows else header))
    lines = [r"\begin{tabular}{" + columns + "}", r"\toprule", _latex_line(header), r"\midrule"]
    return "\n".join([*lines, *(_latex_line(row) for row in rows), r"\bottomrule", r"\end{tabular}", ""])


def _latex_line(cells: Row) -> str:
    return " & ".join(_latex_cell(cell) for cell in cells) + r" \\"


def _latex_cell(cell: str | int | float) -> str:
    if isinstance(cell, float):
        if np.isinf(cell) or np.isnan(cell):
            return r"$\infty$" if np.isinf(cell) else "--"
        plain = format_number(cell)
        return r"$<10^{-6}$" if plain.startswith("<") else plain.replace("−", "$-$").replace(",", r"\,")
    if isinstance(cell, int):
        return f"{cell:,}".replace(",", r"\,")
    return LATEX_NORMS.get(cell) or "".join(LATEX_ESCAPES.get(letter, letter) for letter in cell)
