"""marginattack demo: the main job on what is bundled."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from marginattack.cli.common import one_line_errors, progress

if TYPE_CHECKING:
    from marginattack import Margins
    from marginattack.storage.run_folder import RunFolder

LEVELS = {"l2": (1.00, 1.41, 1.73, 2.00), "linf": (0.06, 0.08, 0.10, 0.12)}  # the paper's, for MNIST


def demo(
    digits: Annotated[int, typer.Option(help="How many of the bundled digits to measure, 1 to 1,000.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    page: Annotated[Path, typer.Option(help="The report to write.")] = Path("marginattack-demo.html"),
) -> None:
    """Measure the l2 and linf margins of bundled MNIST digits on the bundled network, and write a report."""
    with one_line_errors():
        if not 1 <= digits <= 1000:
            raise ValueError(f"--digits is {digits}: 1 to 1,000 digits are bundled")
        with TemporaryDirectory() as folder:
            _demo(digits, seed, page, Path(folder) / "mnist")


def _demo(digits: int, seed: int, page: Path, folder: Path) -> None:
    from marginattack.cli.results import show
    from marginattack.errors import InputError
    from marginattack.report import write_report
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings

    flags = {"model": "zoo:mnist-cnn", "data": "samples:mnist", "data.limit": digits, "seed": seed,
             "norms": list(LEVELS), "shard": 50}  # fmt: skip
    began = time.perf_counter()
    store = run(read_settings(None, [], flags), folder, progress=progress, on_finding=lambda finding: None)
    show([_table(store), f"mnist-cnn (the paper's network), MNIST test digits in official order, Race with 400 "
          f"passes; {time.perf_counter() - began:.0f} s in all."])  # fmt: skip
    try:
        write_report([store.path], page)
        print(f"{page} shows it all.")
    except InputError as error:  # the packages that it needs are an extra
        print(error)


def _table(store: "RunFolder") -> object:
    from rich.table import Table

    from marginattack.margins import Margins

    table = Table("norm", "accuracy", "median margin", "success at", "forwards + backwards")
    for part in store.parts:
        table.add_row(*_row(Margins.load(store.path, norm=part.norm, attack=part.attack)))
    return table


def _row(margins: "Margins") -> Iterator[str]:
    summary = margins.summary()
    shares = [1 - share for share in margins.robust_accuracy(LEVELS[margins.norm])]
    yield margins.norm
    yield f"{summary['accuracy']:.1%}"
    yield f"{summary['median']:.4f}"
    yield "\n".join(f"{level:.2f}: {share:6.1%}" for level, share in zip(LEVELS[margins.norm], shares, strict=True))
    yield f"{summary['forwards']:.0f} + {summary['backwards']:.0f}"
