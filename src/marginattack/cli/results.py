"""marginattack report and compare: read finished runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from marginattack.cli.common import dump_json, make_table, one_line_errors, show
from marginattack.cli.options import AsJson, Eps, Unit, check_unit

PAGE = "HTML page to write.  [default: report.html, unless --text, --json or --figures is given]"
Runs = Annotated[list[Path], Argument(metavar="RUN", help="Run folders written by `marginattack measure`.")]


@one_line_errors()
def report(
    runs: Runs,
    out: Annotated[Path | None, Option("--out", "-o", metavar="FILE", help=PAGE)] = None,
    text: Annotated[bool, Option("--text", help="Print a table.")] = False,
    figures: Annotated[Path | None, Option(metavar="FOLDER", help="Write plots and tables for papers.")] = None,
    width: Annotated[float, Option(metavar="INCHES", help="With --figures: width of the panels.")] = 6.75,
    serif: Annotated[bool, Option("--serif", help="With --figures: use a serif font.")] = False,
    eps: Eps = None,
    unit: Unit = 1,
    as_json: AsJson = False,
) -> None:
    """Report on runs. Writes a self-contained HTML page unless --text, --json or --figures is given."""
    from marginattack.report import text as plain
    from marginattack.report import write_figures, write_report
    from marginattack.storage.run_folder import RunFolder
    from marginattack.views import as_levels

    check_unit(unit)
    as_levels(eps or [])
    stores, levels, written = [RunFolder(run) for run in runs], eps or [], list[str]()
    if figures is not None:
        wanted: list[tuple[Path, list[Path]]] = [(figures, runs)]
        if len(runs) > 1:  # all in one, and each alone
            wanted += [(figures / f"{number}-{run.resolve().name}", [run]) for number, run in enumerate(runs, 1)]
        for folder, some in wanted:
            files = write_figures(some, folder, eps=levels, unit=unit, width=width, serif=serif)
            from marginattack.report.figures import describe_files  # needs the report extra; write_figures checks it

            written.append(describe_files(folder, files))
    if out is not None or not (as_json or text or figures):
        write_report(runs, page := out or Path("report.html"), eps=levels, unit=unit)
        written.append(str(page))
    if as_json:
        print(dump_json([plain.summarize_run(store, levels, unit) for store in stores]))
        return
    if text:
        show(*(line for store in stores for line in plain.format_run(store, levels, unit)))
    for line in written:
        print(line)


@one_line_errors()
def compare(runs: Runs, eps: Eps = None, as_json: AsJson = False) -> None:
    """Compare runs with the first one. Samples are matched by their pixels; differences are tested for significance."""
    from marginattack.report.comparison import compare_runs
    from marginattack.storage.run_folder import RunFolder
    from marginattack.views import as_levels

    if len(runs) < 2:
        raise ValueError("compare needs at least two runs: marginattack compare RUN RUN…")
    as_levels(eps or [])
    result = compare_runs([RunFolder(run) for run in runs], eps or [])
    if as_json:
        print(dump_json(result))
        return
    header = ("norm", "run", "samples", "accuracy", "robust accuracy at ε", "median margin", "ratio of margins",
              "smaller / equal / larger", "p")  # fmt: skip
    lacking = [f"{each['norm']} ({each['attack']}) is in {each['in']}, but not in {each['not_in']}: not compared."
               for each in result["missing"]]  # fmt: skip
    show(f"Baseline: {runs[0]}", make_table(header, map(_comparison_cells, result["rows"])), *lacking,
         "a → b: the baseline, then the run. Accuracies: of each run's own samples. Margins: of samples that both "
         "classify correctly.",
         "Ratio: median over samples with its 95 % confidence interval; p: Wilcoxon signed-rank test.")  # fmt: skip


def _comparison_cells(row: dict[str, Any]) -> Iterator[str]:
    from marginattack.report.numbers import format_distance, format_number

    yield row["norm"]
    yield f"{row['b']}\n{row['attack_b']}"
    yield (f"{row['samples_a']:,} → {row['samples_b']:,}\n{row['shared']:,} in both\n"
           f"{row['n']:,} correct in both")  # fmt: skip
    yield f"{row['accuracy_a']:.1%} → {row['accuracy_b']:.1%}"
    yield "\n".join(f"{format_distance(each['eps'])}: {each['a']:.1%} → {each['b']:.1%}" for each in row["robust"])
    yield f"{format_number(row['median_a'])} → {format_number(row['median_b'])}"
    ratio, low, high = (format_number(row[name], 5) for name in ("median_ratio", "ratio_low", "ratio_high"))
    yield f"{ratio}\n[{low}, {high}]"
    yield f"{row['smaller']} / {row['ties']} / {row['larger']}"
    yield f"{row['p']:.2g}"
