"""marginattack report and compare: reading finished runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from marginattack.cli.common import one_line_errors

Runs = Annotated[list[Path], typer.Argument(help="Run folders that `measure --out` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Unit = Annotated[int, typer.Option(help="Unit of distances: 1 (pixels from 0 to 1) or 255.")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    text: Annotated[bool, typer.Option("--text", help="Print a table instead of writing a page.")] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Write the plots and tables for papers into this folder.")
    ] = None,
    eps: Annotated[list[float] | None, typer.Option(help="Distance at which to give robust accuracy; repeat.")] = None,
    unit: Unit = 1,
    as_json: AsJson = False,
) -> None:
    """Show runs: as a self-contained page, as a table (--text), as JSON (--json), as figures (--figures)."""
    with one_line_errors():
        from marginattack.report import text as plain
        from marginattack.storage.run_folder import Store

        checked_unit(unit)
        stores = [Store(run) for run in runs]
        if as_json:
            print(plain.dump_json([plain.summarize_run(store, eps or (), unit) for store in stores]))
        elif text:
            show([line for store in stores for line in plain.format_run(store, eps or (), unit)])
        elif figures is not None:
            from marginattack.report import write_figures

            for number, store in enumerate(stores, 1):
                folder = figures if len(stores) == 1 else figures / f"{number}-{store.path.resolve().name}"
                for path in write_figures(store.path, folder):
                    print(path)
        else:
            from marginattack.report import write_report

            write_report(runs, out, unit=unit)
            print(out)


def compare(runs: Runs, as_json: AsJson = False) -> None:
    """Compare runs with the first, sample by sample (joined by the pixels), with the significance of what differs."""
    with one_line_errors():
        from rich.table import Table

        from marginattack.report.comparison import compare_runs
        from marginattack.report.text import dump_json
        from marginattack.storage.run_folder import Store

        if len(runs) < 2:
            raise ValueError("compare needs two runs or more: marginattack compare RUN RUN…")
        rows = compare_runs([Store(run) for run in runs])
        if as_json:
            print(dump_json(rows))
            return
        table = Table("norm", "run", "n", "median", "was", "ratio of margins", "smaller / equal / larger", "p")
        for row in rows:
            table.add_row(
                row["norm"], f"{row['b']}\n{row['attack_b']}", f"{row['n']:,}",
                f"{row['median_b']:.4g}", f"{row['median_a']:.4g}",
                f"{row['median_ratio']:.4f} [{row['ratio_low']:.4f}, {row['ratio_high']:.4f}]",
                f"{row['smaller']} / {row['ties']} / {row['larger']}", f"{row['p']:.2g}",
            )  # fmt: skip
        first = rows[0]
        note = "Ratio: median over samples, with its 95 % interval; p: Wilcoxon's signed-rank test."
        show([f"against {first['a']}", table, note])


def checked_unit(unit: int) -> None:
    """Refuse a unit that is neither of the two that pixels have."""
    if unit not in (1, 255):
        raise ValueError(f"--unit is {unit}: choose 1 or 255")


def show(lines: list[object]) -> None:
    """Print tables and lines; wide enough for the tables where the output is piped."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))
