"""marginattack demo: the main job on what is bundled."""

import time
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Annotated

import typer

from marginattack.cli.common import one_line_errors, progress

if TYPE_CHECKING:
    from torch import nn

    from marginattack import Margins

LEVELS = {"l2": (1.00, 1.41, 1.73, 2.00), "linf": (0.06, 0.08, 0.10, 0.12)}  # the paper's, for MNIST


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
        with progress(f"{norm} margins", len(images)) as advance:
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
