"""What commands share: errors in one line, tables, and progress bars."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from marginattack.errors import redact

LOG_INTERVAL = 60.0  # seconds


@contextmanager
def one_line_errors(*, resumable: bool = False) -> Iterator[None]:
    """End the command with one line on stderr: exit code 2 for bad input, 130 for an interrupt. Also a decorator.

    A reader that ends early, as in ``| head``, ends the command quietly.
    """
    resume = " Run the same command again to resume." if resumable else ""
    _prepare_streams()
    try:
        yield
        sys.stdout.flush()
    except (ValueError, ModuleNotFoundError) as error:
        fail(str(error), 2)
    except OSError as error:
        from marginattack.storage.files import is_disk_full

        if isinstance(error, BrokenPipeError) and _output_is_closed():
            raise  # typer ends the process quietly, with code 1
        if is_disk_full(error):
            fail(f"the disk is full: {error.strerror or error}.{resume and ' Finished results are kept.'}{resume}", 2)
        path = f" {error.filename}" if error.filename else ""
        fail(f"cannot read or write{path}: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        fail(f"Interrupted.{resume}", 130)


def _prepare_streams() -> None:
    """Let closed streams discard what is written, and open ones escape what their encoding cannot express."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # the file that is opened next would get its number, and with it what libraries print
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


def _output_is_closed() -> bool:
    """Whether stdout or stderr has no reader any more."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line on stderr."""
    print(f"marginattack: {' '.join(redact(message).split())}", file=sys.stderr)
    raise typer.Exit(code) from None


def make_table(header: Iterable[str], rows: Iterable[Iterable[str]], **style: Any) -> Any:
    """Make a rich table."""
    from rich.table import Table

    table = Table(*header, **style)
    for row in rows:
        table.add_row(*row)
    return table


def show(*lines: Any) -> None:
    """Print tables and lines of text; tables are 160 characters wide where the output is not a terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


@contextmanager
def progress(name: str, total: int, note: Callable[[], str] | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar with rate, time left and a note on stderr; yields a function that advances it.

    Where stderr is not a terminal, a task with a note logs one line per minute, others print nothing.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    console, last = Console(stderr=True), time.monotonic()

    def status(task: Task) -> str:
        rate = f"{task.speed:.1f}/s" if task.speed else ""
        return f"{rate}, {note()}" if rate and note else note() if note else rate

    class Status(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(status(task))

    def advance(done: int) -> None:
        nonlocal last
        bar.advance(task.id, done)
        if note and not console.is_terminal and time.monotonic() - last >= LOG_INTERVAL:
            last, left = time.monotonic(), task.time_remaining
            line = f"{name} {task.completed:.0f}/{total}, {status(task)}{f', {left / 60:.0f} min left' if left else ''}"
            print(f"marginattack: {line}", file=sys.stderr, flush=True)

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), Status())
    # A shard may take a minute, so the rate is averaged over ten.
    with Progress(*columns, console=console, speed_estimate_period=600, disable=not console.is_terminal) as bar:
        bar.add_task(name, total=total)
        (task,) = bar.tasks
        yield advance
