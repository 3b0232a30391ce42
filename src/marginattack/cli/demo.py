"""marginattack demo: measure the bundled digits on the bundled network."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from typer import Option

from marginattack.cli.common import Display, dump_json, make_table, one_line_errors, show
from marginattack.cli.options import AsJson, Quiet, Seed
from marginattack.runs.settings import read_settings

if TYPE_CHECKING:
    from marginattack.margins import Margins

LEVELS = {"l2": (1.00, 1.41, 1.73, 2.00), "linf": (0.06, 0.08, 0.10, 0.12)}  # the paper's, for MNIST


@one_line_errors()
def demo(
    digits: Annotated[int, Option(metavar="N", help="Number of bundled digits to measure, 1 to 1,000.")] = 200,
    seed: Seed = 0,
    page: Annotated[Path, Option(metavar="FILE", help="HTML report to write.")] = Path("marginattack-demo.html"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure bundled MNIST digits. Prints l2 and linf margins on the bundled network and writes a report."""
    if not 1 <= digits <= 1000:
        raise ValueError(f"--digits is {digits}: choose 1 to 1,000, the number of bundled digits")
    flags = {"model": "zoo:mnist-cnn", "data": "samples:mnist", "data.limit": digits, "seed": seed,
             "norms": list(LEVELS)}  # fmt: skip
    from marginattack.errors import InputError
    from marginattack.margins import Margins
    from marginattack.report import write_report
    from marginattack.report.text import summarize_run
    from marginattack.runs.run import run

    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        settings = read_settings(None, [], flags)
        display = Display(quiet=quiet)
        with display.log():
            store = run(settings, f"{folder}/mnist", progress=display.progress, on_finding=lambda finding: None)
        seconds = time.perf_counter() - began
        try:
            write_report([store.path], page)
            written = f"Report: {page}"
        except InputError as error:  # the packages for reports are an optional extra
            written = str(error)
        if as_json:
            print(dump_json(summarize_run(store) | {"run": None, "seconds": seconds, "report": written}))
            return
        header = ("norm", "accuracy", "median margin", "success at", "forwards + backwards")
        show(make_table(header, (_row(Margins.load(store.path, norm=part.norm)) for part in store.parts)),
             f"mnist-cnn (the paper's network), MNIST test digits in official order, Race with 400 passes; "
             f"{seconds:.0f} s in total.", written)  # fmt: skip


def _row(margins: "Margins") -> list[str]:
    summary, levels = margins.summary(), LEVELS[margins.norm]
    robust = zip(levels, margins.robust_accuracy(levels), strict=True)
    success = "\n".join(f"{level:.2f}: {1 - share:6.1%}" for level, share in robust)
    passes = f"{summary['forwards']:.0f} + {summary['backwards']:.0f}"
    return [margins.norm, f"{summary['accuracy']:.1%}", f"{summary['median']:.4f}", success, passes]
