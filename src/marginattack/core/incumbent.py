"""Incumbent: the nearest adversarial point of each sample so far, and the history of its distance."""

from copy import copy

import torch
from torch import Tensor

from marginattack.core.box import Box
from marginattack.core.norms import Norm
from marginattack.core.tensors import occurrence, pad_rows
from marginattack.core.types import Goals, Mask, Points, Scalars

RATIO = 1.05  # from one point of the grid to the next
POINTS = 320  # 1.05^320: six million passes
GRID = torch.tensor([RATIO**k for k in range(POINTS)])  # passes


class History:
    """The best distance of each sample against the passes spent, on a geometric grid of passes.

    ``reached[i, k]`` is the best distance of sample i when it had spent between RATIO^(k−1) and RATIO^k passes.
    All tensors are on the device of the points, so that recording never waits for it.
    """

    def __init__(self, n: int, like: Tensor) -> None:
        self.passes = torch.zeros(n, dtype=torch.int64, device=like.device)
        self.distance = torch.full((n,), torch.inf, dtype=like.dtype, device=like.device)
        self.reached = torch.full((n, POINTS), torch.nan, dtype=like.dtype, device=like.device)
        self.grid = (GRID.double() * (1 + 1e-9)).to(like.device)

    def record(self, rows: Tensor | None, passes: Tensor, distance: Scalars) -> None:
        """Record passes of these samples (None: all), spent on points at this distance (infinity: not adversarial).

        A sample may occur several times, for attempts that run in parallel.
        """
        if rows is None:
            self.passes += passes
            torch.minimum(self.distance, distance[:, 0], out=self.distance)
            self.reached.scatter_(1, self._slot(self.passes)[:, None], self.distance[:, None])
            return
        self.passes.index_add_(0, rows, passes)
        self.distance.scatter_reduce_(0, rows, distance[:, 0], "amin")
        self.reached[rows, self._slot(self.passes[rows])] = self.distance[rows]

    def _slot(self, passes: Tensor) -> Tensor:
        return torch.searchsorted(self.grid, passes.double()).clamp(max=POINTS - 1)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Everything that has one row per sample."""
        return self.passes, self.distance, self.reached

    def padded(self, rows: Tensor | None, n: int) -> "History":
        """A copy of the history of these samples (None: all), padded to n rows."""
        part = copy(self)
        part.passes, part.distance, part.reached = (pad_rows(t if rows is None else t[rows], n) for t in self.tensors)
        return part

    @property
    def curve(self) -> Tensor:
        """The best distance on each point of the grid, (n, POINTS); infinity while nothing was found."""
        reached = torch.where(torch.isnan(self.reached), torch.inf, self.reached)
        return reached.cummin(1).values.cpu()

    def distance_at(self, share: float) -> Tensor:
        """The best distance of each sample when about this share of its passes was spent."""
        slot = (torch.searchsorted(GRID.double(), share * self.passes.cpu().double(), right=True) - 1).clamp(min=0)
        return self.curve.gather(1, slot[:, None])[:, 0]


class Incumbent:
    """The nearest adversarial ``points`` so far and their ``distance`` from x₀ (infinity: none, the point is x₀).

    ``history`` belongs to the whole batch; ``origin`` holds the row of the batch for each row here (None: the same
    row), and ``unique`` says whether each of them occurs only once.
    """

    def __init__(self, x0: Points, box: Box, norm: Norm) -> None:
        self.x0, self.box, self.norm = x0, box, norm
        self.points: Points = x0.clone()
        self.distance: Scalars = torch.full_like(x0[:, :1], torch.inf)
        self.history = History(len(x0), x0)
        self.origin: Tensor | None = None
        self.unique = True

    def offer(self, x: Points, crossed: Mask, goals: Goals, passes: int, rows: slice | Tensor) -> None:
        """Keep each point that crossed, lies in the box and is nearer; record the passes spent on these rows.

        Samples whose direction is 0 did not spend any.
        """
        size = self.judge(x, crossed)
        self.history.record(self.origin_of(rows), passes * goals[rows, 1].abs(), size[rows])

    def judge(self, x: Points, crossed: Mask) -> Scalars:
        """Keep nearer points; return the distance of each point, infinite unless it is adversarial and in the box."""
        x = x.detach()
        size = torch.where((crossed & self.box.contains(x))[:, None], self.norm.size(x - self.x0), torch.inf)
        nearer = size < self.distance
        self.points = torch.where(nearer, x, self.points)
        self.distance = torch.where(nearer, size, self.distance)
        return size

    def origin_of(self, rows: slice | Tensor) -> Tensor | None:
        """The rows of the whole batch that these rows are; None for all of them in order."""
        if self.origin is None:
            return None if isinstance(rows, slice) else rows
        return self.origin[rows]

    def select(self, rows: Tensor, *, known: bool) -> "Incumbent":
        """The incumbent of some rows, empty or, if ``known``, with their points."""
        part, here = copy(self), rows.to(self.x0.device)
        part.x0, part.box = self.x0[here], self.box.select(here)
        part.points = self.points[here] if known else part.x0.clone()
        part.distance = self.distance[here] if known else torch.full_like(part.x0[:, :1], torch.inf)
        part.origin = here if self.origin is None else self.origin[here]
        part.unique = self.unique and bool((torch.bincount(rows) <= 1).all())
        return part

    def merge(self, part: "Incumbent", rows: Tensor) -> None:
        """Take over nearer points from an incumbent that was selected by these rows."""
        order = part.distance[:, 0].argsort(stable=True).cpu()
        nearest = order[occurrence(rows[order]) == 0]
        nearest = nearest[(part.distance[nearest, 0] < self.distance[rows[nearest], 0]).cpu()]
        here = rows[nearest].to(self.x0.device)
        self.points = self.points.index_copy(0, here, part.points[nearest])
        self.distance = self.distance.index_copy(0, here, part.distance[nearest])
