"""The command line: parse, call, print. Commands import what they need when they run, so that help is fast."""

import typer

from marginattack.cli import bench, bound, demo, listing, measure, reproduce, results

app = typer.Typer(
    help="Measure how far each input is from the decision boundary of a classifier.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

for command in (demo.demo, measure.measure, results.report, results.compare, measure.diagnose, reproduce.reproduce):
    app.command()(command)
app.command()(bench.bench)
app.command()(bound.bound)
app.command("list")(listing.list_)
