"""What the commands share: how they end, and their progress bars."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

MINUTE = 60.0


@contextmanager
def one_line_errors(hint: str = "") -> Iterator[None]:
    """Bad input ends the command with one line and exit code 2; an interrupt with 130. ``hint`` says how to go on."""
    try:
        yield
    except (ValueError, ModuleNotFoundError) as error:
        _end(str(error), 2)
    except OSError as error:
        from marginattack.storage.files import is_disk_full

        if not is_disk_full(error):
            where = f" {error.filename}" if error.filename else ""
            _end(f"cannot read or write{where}: {error.strerror or error}", 2)
        _end(f"the disk is full: {error.strerror or error}; what is finished is kept{hint and ', and '}{hint}", 2)
    except KeyboardInterrupt:
        _end(f"interrupted{hint and '; '}{hint}", 130)


def _end(message: str, code: int) -> None:
    print(f"marginattack: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code) from None


@contextmanager
def progress(what: str, total: int, note: Callable[[], str] | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr with rate and time left, and whatever ``note`` says.

    Nothing when that is no terminal; with a note, which long runs have, a line a minute for their logs.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as RichTask
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: RichTask) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "")

    class Note(ProgressColumn):
        def render(self, task: RichTask) -> Text:
            return Text(note() if note else "")

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(), Note()
    )  # fmt: skip
    console = Console(stderr=True)
    # Shards may take a minute each, so the rate is over ten.
    with Progress(*columns, console=console, speed_estimate_period=600, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        if note is None or console.is_terminal:
            yield lambda done: bar.advance(task, done)
        else:
            yield _logged(what, total, note)


def _logged(what: str, total: int, note: Callable[[], str]) -> Callable[[int], None]:
    """A line on stderr a minute."""
    began = last = time.monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last
        done, now = done + more, time.monotonic()
        if now - last >= MINUTE:
            last, rate = now, done / (now - began)
            left = f", {(total - done) / rate / 60:.0f} min left" if rate else ""
            print(f"marginattack: {what} {done}/{total}, {rate:.1f}/s, {note()}{left}", file=sys.stderr, flush=True)

    return advance
