"""State shared by the threads of a process, changed for the duration of a block."""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch

Restore: TypeAlias = Callable[[], object]

_LOCK = threading.RLock()
_HELD: dict[Hashable, tuple[int, Restore]] = {}  # by state: how many blocks hold it, and the function to restore it
_RANDOM = threading.RLock()


@contextmanager
def hold(save: Callable[[], dict[Hashable, Restore]], change: Callable[[], None]) -> Iterator[None]:
    """Change shared state; each part of it is restored when the last block that holds this part ends.

    ``save`` returns a function to restore each part, ``change`` changes all. Blocks may overlap in time and in parts.
    """
    with _LOCK:
        saved = save()
        for key, restore in saved.items():
            users, first = _HELD.get(key, (0, restore))
            _HELD[key] = users + 1, first
    try:
        with _LOCK:
            change()
        yield
    finally:
        with _LOCK, ExitStack() as restored:  # it calls each of them, even if one fails
            for key in saved:
                users, restore = _HELD.pop(key)
                if users > 1:
                    _HELD[key] = users - 1, restore
                else:
                    restored.callback(restore)


@contextmanager
def exclusive(key: Hashable) -> Iterator[bool]:
    """No other block begins or ends inside; yields whether at most one holds this state."""
    with _LOCK:
        yield _HELD.get(key, (0, None))[0] <= 1


@contextmanager
def forked_random(device: torch.device) -> Iterator[None]:
    """Restore torch's random generators after the block; one thread at a time, since threads share them."""
    with _RANDOM, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random generators and silence warnings; one thread at a time, since threads share both."""
    with forked_random(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        yield
