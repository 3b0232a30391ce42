"""What stands in for a GPU on a machine without one."""

from collections.abc import Callable
from typing import Any


class Replayed:
    """A graph as the CPU can have it: the function again, its answer put where the first one lies."""

    def __init__(self, function: Callable[[], Any]) -> None:
        # Capturing computes nothing: a step, which changes what it is about, must not be made then.
        self.function, self.answer = function, None if function.__name__ == "onward" else function()

    def replay(self) -> None:
        for old, new in zip(self.answer or (), self.function() or (), strict=True):
            old.copy_(new)
