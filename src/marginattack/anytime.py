"""Anytime: the best distance of each sample against the passes spent, on a geometric grid of passes."""

import math

import torch
from torch import Tensor

from marginattack.shapes import Scalars

RATIO = 1.05  # from one point of the grid to the next
POINTS = 320  # 1.05^320: six million passes

GRID = torch.tensor([RATIO**k for k in range(POINTS)])


class Anytime:
    """What was known when: ``curve[i, k]``, the best distance of sample i within RATIO^k passes (infinity: nothing)."""

    def __init__(self, n: int, like: Tensor) -> None:
        self.passes = torch.zeros(n, dtype=torch.int64)
        self.best = torch.full((n,), torch.inf, dtype=like.dtype, device=like.device)
        self._seen = torch.full((n, POINTS), torch.nan, dtype=like.dtype, device=like.device)

    def see(self, rows: Tensor, passes: int, size: Scalars) -> None:
        """These samples spent so many passes more; the points looked at are this far away, or not adversarial.

        A sample may be named several times: attempts that run side by side.
        """
        self.passes.index_add_(0, rows, torch.full_like(rows, passes))
        there = rows.to(self.best.device)
        self.best = self.best.scatter_reduce(0, there, size[:, 0], "amin")
        slot = (self.passes[rows].double().log() / math.log(RATIO) - 1e-9).ceil().long().clamp(0, POINTS - 1)
        self._seen[there, slot.to(there.device)] = self.best[there]

    @property
    def curve(self) -> Tensor:
        """The best distances on the grid, (n, POINTS), each carried on until something better was seen."""
        seen = torch.where(torch.isnan(self._seen), torch.inf, self._seen)
        return seen.cummin(1).values.cpu()

    def at(self, share: float) -> Tensor:
        """The best distance of each sample when about this share of its passes was spent."""
        slot = (torch.searchsorted(GRID.double(), share * self.passes.double(), right=True) - 1).clamp(min=0)
        return self.curve.gather(1, slot[:, None])[:, 0]
