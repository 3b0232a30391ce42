"""The command line: parse, call, print."""

import sys
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import nn

    from marginattack import Margins

app = typer.Typer(
    help="How far is each input from the decision boundary of a classifier?",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

LEVELS = {"l2": (1.00, 1.41, 1.73, 2.00), "linf": (0.06, 0.08, 0.10, 0.12)}  # the paper's, for MNIST


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends the command with one line and exit code 2; an interrupt with 130."""
    try:
        yield
    except ValueError as error:
        print(f"marginattack: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("marginattack: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None


@app.callback()
def main() -> None:
    """How far is each input from the decision boundary of a classifier?"""


@app.command()
def demo(
    digits: Annotated[int, typer.Option(help="How many of the bundled digits to measure, 1 to 1,000.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
) -> None:
    """Measure the l2 and linf margins of bundled MNIST digits on the bundled network."""
    with one_line_errors():
        from marginattack.sources.data import samples
        from marginattack.sources.networks import zoo

        if not 1 <= digits <= 1000:
            raise ValueError(f"--digits is {digits}: 1 to 1,000 digits are bundled")
        images, labels = samples("mnist", digits)
        _demo(zoo("mnist-cnn"), images, labels, seed)


def _demo(model: "nn.Module", images: Sized, labels: Sized, seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from marginattack import measure

    table = Table("norm", "accuracy", "median margin", "success at", "forwards + backwards", "time a digit")
    for norm in LEVELS:
        began = time.perf_counter()
        with _progress(f"{norm} margins", len(images)) as advance:
            margins = measure(model, images, labels, norm, seed=seed, batch=50, progress=advance)
        table.add_row(*_row(margins, (time.perf_counter() - began) / len(margins)))
    Console().print(table)
    print("mnist-cnn (the paper's network), MNIST test digits in official order, MarginAttack with 200 moves.")


def _row(margins: "Margins", seconds: float) -> Iterator[str]:
    summary = margins.summary()
    shares = [1 - share for share in margins.robust_accuracy(LEVELS[margins.norm])]
    yield margins.norm
    yield f"{summary['accuracy']:.1%}"
    yield f"{summary['median']:.4f}"
    yield "\n".join(f"{level:.2f}: {share:6.1%}" for level, share in zip(LEVELS[margins.norm], shares, strict=True))
    yield f"{summary['forwards']:.0f} + {summary['backwards']:.0f}"
    yield f"{1000 * seconds:.0f} ms"


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr with rate and time left; nothing when that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(help="attacks, norms, presets, models or data")]) -> None:
    """List what can be named: attacks, norms, presets, models or data."""
    with one_line_errors():
        from rich.console import Console
        from rich.table import Table

        listing = _listings()
        if what not in listing:
            raise ValueError(f"cannot list {what!r}: choose one of {', '.join(listing)}")
        header, rows = listing[what]
        table = Table(*header, show_lines=what == "attacks")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def _listings() -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Header and rows of each listing."""
    from marginattack.attacks import ATTACKS
    from marginattack.attacks.presets import PRESETS
    from marginattack.norms import NORMS
    from marginattack.sources.data import SAMPLES
    from marginattack.sources.networks import ZOO

    return {
        "attacks": (
            ("name", "norms", "passes", "reference"),
            [(name, " ".join(attack.norms), attack.cost, attack.reference) for name, attack in ATTACKS.items()],
        ),
        "norms": (("name",), [(name,) for name in NORMS]),
        "presets": (("name", "settings"), [(name, repr(attack)) for name, (_, attack) in PRESETS.items()]),
        "models": (("name", "what"), [(f"zoo:{name}", str(make.__doc__).split("\n")[0]) for name, make in ZOO.items()]),
        "data": (("name", "what"), [(f"samples:{name}", what) for name, what in SAMPLES.items()]),
    }  # fmt: skip
