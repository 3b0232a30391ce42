"""One-line errors for models that fail or hang, with the samples on which they do."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

from marginattack.errors import InputError, describe

Samples: TypeAlias = tuple[Tensor, Tensor, Tensor]  # ids, images, labels

KEPT = "finished shards are kept; run the same command again to resume"
SHOWN = 8  # ids listed in a message


def name_samples(ids: Sequence[int]) -> str:
    """Name samples by their ids: a range, or the first few."""
    if len(ids) == 1:
        return f"sample {ids[0]}"
    if list(ids) == list(range(ids[0], ids[-1] + 1)):
        return f"samples {ids[0]} to {ids[-1]}"
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"samples {', '.join(map(str, ids[:SHOWN]))}{more}"


def is_model_error(error: Exception) -> bool:
    """Whether an error was raised inside a model or code that it called, not by this package."""
    cause = error.__cause__ if isinstance(error, InputError) else error
    trace = cause.__traceback__ if cause is not None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not str(trace.tb_frame.f_globals.get("__name__")).startswith("marginattack.")


def explain_model_error(error: Exception, batch: Samples, attempt: Callable[[Samples], object]) -> InputError:
    """Name the sample of a batch that makes a model fail, or the whole batch if no sample fails alone."""
    suspects = batch
    while "CUDA error" not in str(error):  # after one, CUDA fails for the rest of the process
        middle = len(suspects[0]) // 2
        halves = (slice_samples(suspects, rows) for rows in (slice(middle), slice(middle, None)) if middle)
        failing = next((half for half in halves if _fails(attempt, half)), None)
        if failing is None:
            break
        suspects = failing
    named, every = (name_samples(each[0].tolist()) for each in (suspects, batch))
    where = f"{named} (batch: {every}, shape {tuple(batch[1].shape)})"
    reason = str(error) if isinstance(error, InputError) else describe(error)
    return InputError(f"the model fails on {where}: {reason}; {KEPT}")


@contextmanager
def model_errors(ids: Tensor, doing: str) -> Iterator[None]:
    """Name the samples if a model fails on them after they were measured."""
    try:
        yield
    except Exception as error:
        if not is_model_error(error):
            raise
        named = name_samples(ids.tolist())
        raise InputError(f"the model fails {doing} {named}: {describe(error)}; {KEPT}") from error


def exceeded(seconds: int) -> str:
    """The error of a shard that hangs."""
    return f"no result within {seconds} s (--shard-timeout)"


@contextmanager
def end_process_after(seconds: int, where: Callable[[], str]) -> Iterator[None]:
    """End the process, as a kill would, if a model hangs in the block, since it cannot be stopped safely."""

    def end() -> None:
        line = f"marginattack: the model hangs {where()}: {exceeded(seconds)}; {KEPT}"
        cursor = "\033[?25h\n" if sys.stderr.isatty() else ""  # show the cursor, which a progress bar hides
        print(f"{cursor}{line}", file=sys.stderr, flush=True)
        os._exit(2)

    watchdog = threading.Timer(seconds, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def slice_samples(samples: Samples, rows: slice) -> Samples:
    """Select samples."""
    ids, images, labels = samples
    return ids[rows], images[rows], labels[rows]


def _fails(attempt: Callable[[Samples], object], samples: Samples) -> bool:
    try:
        attempt(samples)
    except Exception:
        return True
    return False
