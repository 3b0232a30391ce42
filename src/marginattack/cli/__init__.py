"""The command line: parse, call, print. Every command imports what it needs when it is called."""

import typer

from marginattack.cli import bench, demo, listing, measure, reproduce, results

app = typer.Typer(
    help="How far is each input from the decision boundary of a classifier?",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


@app.callback()
def main() -> None:
    """How far is each input from the decision boundary of a classifier?"""


app.command()(demo.demo)
app.command()(measure.measure)
app.command()(results.report)
app.command()(results.compare)
app.command()(measure.diagnose)
app.command()(reproduce.reproduce)
app.command()(bench.bench)
app.command("list")(listing.list_)
