"""Anytime: the best distance of each sample against the passes spent, on a geometric grid of passes."""

from copy import copy

import torch
from torch import Tensor

from marginattack.core.types import Scalars
from marginattack.execution.graphs import padded

RATIO = 1.05  # from one point of the grid to the next
POINTS = 320  # 1.05^320: six million passes

GRID = torch.tensor([RATIO**k for k in range(POINTS)])


class Anytime:
    """What was known when: ``curve[i, k]``, the best distance of sample i within RATIO^k passes (infinity: nothing).

    Everything lies on the device of the points, so that keeping it never waits for them.
    """

    def __init__(self, n: int, like: Tensor) -> None:
        self.passes = torch.zeros(n, dtype=torch.int64, device=like.device)
        self.best = torch.full((n,), torch.inf, dtype=like.dtype, device=like.device)
        self.seen = torch.full((n, POINTS), torch.nan, dtype=like.dtype, device=like.device)
        self.grid = (GRID.double() * (1 + 1e-9)).to(like.device)

    def see(self, rows: Tensor | None, passes: Tensor, size: Scalars) -> None:
        """These samples (else all) spent so many passes more; what was looked at is this far away, or not adversarial.

        A sample may be named several times: attempts that run side by side.
        """
        if rows is None:
            self.passes += passes
            self.best = torch.minimum(self.best, size[:, 0])
            self.seen.scatter_(1, self._slot(self.passes)[:, None], self.best[:, None])
            return
        self.passes.index_add_(0, rows, passes)
        self.best = self.best.scatter_reduce(0, rows, size[:, 0], "amin")
        self.seen[rows, self._slot(self.passes[rows])] = self.best[rows]

    def _slot(self, passes: Tensor) -> Tensor:
        return torch.searchsorted(self.grid, passes.double()).clamp(max=POINTS - 1)

    def of(self, rows: Tensor | None) -> "Anytime":
        """The record of these samples (else of all)."""
        if rows is None:
            return self
        part = copy(self)
        part.passes, part.best, part.seen = self.passes[rows], self.best[rows], self.seen[rows]
        return part

    def padded(self, n: int) -> "Anytime":
        """A copy with room for n samples."""
        part = copy(self)
        part.passes, part.best, part.seen = (padded(tensor, n) for tensor in (self.passes, self.best, self.seen))
        return part

    def load(self, part: "Anytime") -> None:
        """Take over another record, in place; what there is beyond it stays."""
        n = len(part.best)
        for mine, other in ((self.passes, part.passes), (self.best, part.best), (self.seen, part.seen)):
            mine[:n].copy_(other)

    def unload(self, part: "Anytime", rows: Tensor | None) -> None:
        """Take over what another record holds of these samples (else of all), its first ones."""
        if rows is None:
            n = len(self.best)
            self.passes, self.best, self.seen = (tensor[:n].clone() for tensor in (part.passes, part.best, part.seen))
            return
        n = len(rows)
        self.passes.index_copy_(0, rows, part.passes[:n])
        self.best = self.best.index_copy(0, rows, part.best[:n])
        self.seen.index_copy_(0, rows, part.seen[:n])

    @property
    def curve(self) -> Tensor:
        """The best distances on the grid, (n, POINTS), each carried on until something better was seen."""
        seen = torch.where(torch.isnan(self.seen), torch.inf, self.seen)
        return seen.cummin(1).values.cpu()

    def at(self, share: float) -> Tensor:
        """The best distance of each sample when about this share of its passes was spent."""
        slot = (torch.searchsorted(GRID.double(), share * self.passes.cpu().double(), right=True) - 1).clamp(min=0)
        return self.curve.gather(1, slot[:, None])[:, 0]
