"""The command line: parse, call, print. Commands import what they need when they run, so that help is fast."""

from collections.abc import Callable
from typing import Annotated

import typer

from marginattack._version import __version__
from marginattack.cli import bench, bound, check, demo, evaluate, listing, measure, reproduce, results
from marginattack.cli.commands import Command, Group

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo, "measure": measure.measure, "evaluate": evaluate.evaluate, "report": results.report,
    "compare": results.compare, "check": check.check, "bound": bound.bound, "diagnose": measure.diagnose,
    "bench": bench.bench, "reproduce": reproduce.reproduce, "list": listing.list_,
}  # fmt: skip

app = typer.Typer(
    cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(f"marginattack {__version__}")
        raise typer.Exit
    return wanted


VERSION = typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")


@app.callback()
def main(version: Annotated[bool, VERSION] = False) -> None:
    """Measure how far each input is from the decision boundary of a classifier."""
