"""marginattack check: gates for CI."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from marginattack.cli.common import dump_json, make_table, one_line_errors, show
from marginattack.cli.options import AsJson, Quiet

RUN = "Finished run folder written by `marginattack measure`."
ACCURACY = "Least accuracy, from 0 to 1."
ROBUST = "Least robust accuracy at a distance, as linf@8/255:0.45. Repeatable."
MEDIAN = "Least median margin, as l2:0.5. Repeatable."
SUMMARY = "Append the table to the summary of the GitHub job."


@one_line_errors()
def check(
    run: Annotated[Path, Argument(metavar="RUN", help=RUN)],
    accuracy: Annotated[str | None, Option(metavar="ACCURACY", help=ACCURACY)] = None,
    robust_accuracy: Annotated[list[str] | None, Option(metavar="NORM@EPS:ACCURACY", help=ROBUST)] = None,
    median_margin: Annotated[list[str] | None, Option(metavar="NORM:MARGIN", help=MEDIAN)] = None,
    junit: Annotated[Path | None, Option(metavar="FILE", help="Write the outcomes as JUnit XML.")] = None,
    github_summary: Annotated[bool, Option("--github-summary", help=SUMMARY)] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check a run against gates. Exit code 1 with a table of what failed, for CI."""
    from marginattack.report import gates
    from marginattack.storage.files import make_folder, write_atomically

    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if github_summary and not page:
        raise ValueError("--github-summary: GITHUB_STEP_SUMMARY is not set; leave it out outside of GitHub Actions")
    wanted = gates.parse_gates(
        accuracy=accuracy, robust_accuracy=robust_accuracy or (), median_margin=median_margin or ()
    )
    outcomes = gates.check_result(run, wanted)
    failed = sum(not each.passed for each in outcomes)
    if junit is not None:
        make_folder(junit.parent)
        with write_atomically(junit) as file:
            file.write(gates.as_junit(str(run), outcomes))
    if github_summary and page:
        with open(page, "a", encoding="utf-8") as summary:
            summary.write(gates.as_markdown(str(run), outcomes))
    if as_json:
        rows = [{**asdict(each), "passed": each.passed} for each in outcomes]
        print(dump_json({"run": str(run), "passed": failed == 0, "gates": rows}))
    elif failed or not quiet:
        gate, n = "gate" if len(outcomes) == 1 else "gates", len(outcomes)
        verdict = f"{failed} of {n} {gate} failed." if failed else f"{n} of {n} {gate} passed."
        shown = [each for each in outcomes if not (quiet and each.passed)]
        show(make_table(gates.HEADER, gates.as_rows(shown)), verdict)
    if failed:
        raise Exit(1)
