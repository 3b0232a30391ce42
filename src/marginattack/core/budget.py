"""Budget: how many forward and backward passes each sample may still spend, and which samples are active."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import torch
from torch import Tensor

from marginattack.core.types import Mask

UNLIMITED = 2**62  # passes per sample without a budget


class BudgetExhausted(Exception):
    """No active sample has enough budget for the next query; ``Problem.solve`` ends the attack here."""


class Budget:
    """Passes of the n samples of a batch: ``left`` to spend, ``forwards`` and ``backwards`` spent; ``active`` rows.

    All tensors are on the host, so that charging never waits for a GPU. Returned rows are on ``device``.
    """

    def __init__(self, n: int, limit: int | None = None, device: torch.device | None = None) -> None:
        self.left = torch.full((n,), UNLIMITED if limit is None else limit)
        self.forwards, self.backwards = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
        self.active = torch.arange(n)
        self.device = device or torch.device("cpu")
        self._rows = (self.active, self.active.to(self.device))  # the rows last charged, on the host and on the device

    @property
    def remaining(self) -> int:
        """The largest number of passes that an active sample may still spend."""
        return max(self.left[self.active].tolist(), default=0)

    @property
    def limited(self) -> bool:
        """Whether there is a limit; shares of an unlimited budget have none either."""
        return self.remaining < UNLIMITED >> 20

    def remaining_of(self, rows: Mask) -> list[int]:
        """How many passes each active sample among these may still spend."""
        left: list[int] = self.left[self.active[rows.cpu()[self.active]]].tolist()
        return left

    def charge(self, forwards: int, backwards: int) -> slice | Tensor:
        """Charge each active sample with enough budget; return their rows on the device (a slice: all).

        Other samples are finished, as they would be alone in a batch, where BudgetExhausted ends the attack.

        Raises:
            BudgetExhausted: No active sample has enough budget.
        """
        rows = self.active[self.left[self.active] >= forwards + backwards]
        if len(rows) == 0:
            raise BudgetExhausted
        self.active = rows
        self.spend(rows, forwards, backwards)
        if len(rows) == len(self.left):
            return slice(None)
        if not torch.equal(rows, self._rows[0]):  # copying to the device waits for it, so the last copy is kept
            self._rows = (rows, rows.to(self.device))
        return self._rows[1]

    def affordable(self, rows: Tensor) -> Mask:
        """Which of these rows are active and have a pass left."""
        return (self.left[rows] > 0) & torch.isin(rows, self.active)

    def spend(self, rows: Tensor, forwards: int, backwards: int) -> None:
        """Charge these rows, or this mask of rows, whether they are active or not."""
        self.forwards[rows] += forwards
        self.backwards[rows] += backwards
        self.left[rows] -= forwards + backwards

    def deactivate(self, finished: Mask) -> None:
        """Leave these samples out of all further queries."""
        self.active = self.active[~finished.cpu()[self.active]]

    def activate(self, rows: Mask) -> None:
        """Let these samples be queried again, as far as their budget allows."""
        self.active = torch.unique(torch.cat([self.active, rows.cpu().nonzero()[:, 0]]))

    def masked(self, rows: Mask, *, of_all: bool = False) -> "Budget":
        """The same passes, with only these samples active, out of the active ones or (``of_all``) out of all."""
        view = copy(self)
        view.active = torch.arange(len(self.left)) if of_all else self.active
        view.deactivate(~rows)
        return view

    @contextmanager
    def reserve(self, rows: Tensor) -> Iterator["Budget"]:
        """A budget for these rows, taken out of this one; unspent passes are returned when the block ends.

        A sample that is named m times gets m equal shares. Inside the block the parent cannot spend reserved passes.
        """
        times = torch.bincount(rows, minlength=len(self.left))
        share = self.left[rows] // times[rows]
        part = copy(self)
        part.left, part.forwards, part.backwards = share.clone(), torch.zeros_like(share), torch.zeros_like(share)
        part.active = torch.isin(rows, self.active).nonzero()[:, 0]
        part._rows = (part.active, part.active.to(self.device))
        self.left.index_add_(0, rows, -share)
        try:
            yield part
        finally:
            self.left.index_add_(0, rows, part.left)
            self.forwards.index_add_(0, rows, part.forwards)
            self.backwards.index_add_(0, rows, part.backwards)


class Prepaid(Budget):
    """A budget whose passes were charged before: all rows may be queried."""

    def charge(self, forwards: int, backwards: int) -> slice:
        return slice(None)
