"""Shared by all commands: one-line errors, tables, JSON, progress and log messages."""

import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import typer

from marginattack.errors import redact

LOG_INTERVAL = 30.0  # seconds


@contextmanager
def one_line_errors(*, resumable: bool = False) -> Iterator[None]:
    """End the command with one line on stderr: exit code 2 for bad input, 130 for an interrupt. Also a decorator.

    If the reader of a pipe ends early, as in ``| head``, the command ends quietly.
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
    """Make closed streams discard output, and open ones escape characters that their encoding lacks."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # else the next file that is opened gets its descriptor, and the output of libraries
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


def _output_is_closed() -> bool:
    """Whether stdout or stderr no longer has a reader."""
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
    table.columns[0].no_wrap = True  # so that names can be copied
    for row in rows:
        table.add_row(*row)
    return table


def show(*lines: Any) -> None:
    """Print tables and lines of text; tables are 160 characters wide if the output is not a terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


def dump_json(tree: Any) -> str:
    """Serialize to strict JSON; NaN and infinity become null."""
    finite = json.loads(json.dumps(tree), parse_constant=lambda name: None)
    return json.dumps(finite, indent=1, allow_nan=False)


@dataclass(frozen=True, kw_only=True)
class Display:
    """Messages of a command on stderr: progress and findings; nothing if quiet; also log messages if verbose."""

    quiet: bool = False
    verbose: bool = False
    note: Callable[[], str] = str  # shown next to the progress

    def say(self, line: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            print(f"marginattack: {redact(line)}", file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show progress with rate and time left; yields a function that advances it.

        If stderr is not a terminal, it prints one line every ``LOG_INTERVAL`` seconds, and one at the end.
        """
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
        from rich.text import Text

        console, began = Console(stderr=True), time.monotonic()

        def status(task: Task) -> str:
            elapsed, done = time.monotonic() - began, task.completed
            rate = _per_second(done, elapsed) if done else ""
            left = f"{_minutes((total - done) * elapsed / done)} left" if 0 < done < total else ""
            return ", ".join(filter(None, [rate, left, self.note()]))

        class Status(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(status(task))

        def log() -> None:
            state = ", ".join(filter(None, [f"{name} {task.completed:.0f}/{total}", status(task)]))
            print(f"marginattack: {state} after {_minutes(time.monotonic() - began)}", file=sys.stderr, flush=True)

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Status())
        shown = console.is_terminal and not self.quiet
        with Progress(*columns, console=console, disable=not shown) as bar:
            bar.add_task(name, total=total)
            (task,) = bar.tasks
            with nullcontext() if shown or self.quiet else _repeated(log):
                yield lambda done: bar.advance(task.id, done)
            if not (shown or self.quiet) and task.completed:
                log()

    @contextmanager
    def log(self) -> Iterator[None]:
        """Print log messages of the package: notices, and if verbose also information."""
        logger, handler = logging.getLogger("marginattack"), logging.Handler()
        handler.emit = lambda record: self.say(record.getMessage())  # type: ignore[method-assign]
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if self.verbose else logging.INFO + 1)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)


def _per_second(done: float | int, seconds: float) -> str:
    """Format a rate without an exponent."""
    rate = done / max(seconds, 1e-9)
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def _minutes(seconds: float | int) -> str:
    """Format a time: in seconds below 100 s, to the second below 10 min, and in minutes above."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{seconds / 60:.0f} min"


@contextmanager
def _repeated(action: Callable[[], None]) -> Iterator[None]:
    """Call a function every ``LOG_INTERVAL`` seconds, from another thread."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(LOG_INTERVAL):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
