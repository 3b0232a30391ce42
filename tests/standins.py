"""Stand-ins for CUDA graphs on a machine without a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


class StandInGraph:
    """A graph on the CPU: a replay calls the function again and copies the result to where the first one lies."""

    def __init__(self, function: Callable[[], Any]) -> None:
        # Capturing computes nothing, so a step, which changes its state in place, must not be called here.
        self.function, self.answer = function, None if function.__name__ == "advance" else function()

    def replay(self) -> None:
        for old, new in zip(self.answer or (), self.function() or (), strict=True):
            old.copy_(new)


def install(patch: pytest.MonkeyPatch) -> list[StandInGraph]:
    """Capture everything on the CPU; returns the list that graphs are appended to."""
    from marginattack.execution import captured, graphs

    made: list[StandInGraph] = []

    def capture(function: Callable[[], Any], device: torch.device, pool: Any) -> tuple[Any, Any]:
        made.append(StandInGraph(function))
        return made[-1], made[-1].answer

    patch.setattr(captured, "capture", capture)
    patch.setattr(graphs, "can_capture", lambda points: True)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return made
