r"""Square (Andriushchenko, Croce, Flammarion, Hein 2020): random search with square changes, without gradients.

.. math:: \min_x c(x) \;\; \text{s.t.} \;\; \|x - x_0\| \le \epsilon, \; x \in box

A proposal changes a random square window of the current point; it is accepted where it lowers c. The share p of the
pixels in a window shrinks in steps. In ℓ∞ every window moves to the surface of the ball; in ℓ2 and ℓ1 a window gets a
bump, two halves of opposite sign, and the budget of a second window, which is set to zero.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from math import prod, sqrt
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from marginattack.attacks.pgd import FixedRadiusAttack, into_ball
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars

HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries of 10,000 after which p is halved
TINY = 1e-12
TILES = 5  # bumps per side of the first point in ℓ2 and ℓ1
SMALLEST = 3  # side of a bump


class Grid(NamedTuple):
    """The inputs as images: features are one row of pixels, axes between the first and the last are joined."""

    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, problem: Problem) -> "Grid":
        """The grid of a problem's inputs; the first of three or more axes is the channel."""
        shape = tuple(problem.shape)
        channels = shape[0] if len(shape) > 2 else 1
        return cls(channels, prod(shape) // channels // shape[-1], shape[-1])

    def window(self, p: float, smallest: int = 1) -> tuple[int, int]:
        """Height and width of a window with a share p of the pixels: square, or as high or wide as the grid."""
        pixels = p * self.height * self.width
        side = max(round(sqrt(pixels)), smallest)
        if side > min(self.height, self.width):  # the shorter side of the grid, and as many pixels along the other
            side = min(self.height, self.width)
            longer = min(max(round(pixels / side), smallest), max(self.height, self.width))
            return (side, longer) if self.height <= self.width else (longer, side)
        return side, side


class Window(NamedTuple):
    """A window per sample: which pixels are inside, (n, 1, h, w), and their places in it, (n, h, 1) and (n, 1, w)."""

    inside: Tensor
    row: Tensor
    column: Tensor

    @classmethod
    def draw(cls, problem: Problem, grid: Grid, high: int, wide: int) -> "Window":
        """At random places."""
        u = problem.draws.uniform(2)
        top, left = ((u[:, k, None] * room).floor() for k, room in
                     enumerate((grid.height - high + 1, grid.width - wide + 1)))  # fmt: skip
        row = torch.arange(grid.height, device=u.device) - top
        column = torch.arange(grid.width, device=u.device) - left
        rows, columns = (row >= 0) & (row < high), (column >= 0) & (column < wide)
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        return cls(inside, row.clamp(0, high - 1).long()[:, :, None], column.clamp(0, wide - 1).long()[:, None, :])


class Proposal(ABC):
    """How Square moves under a norm: the first point, and changes of a point; for all samples at once."""

    @abstractmethod
    def first(self, problem: Problem, radius: Scalars) -> Points:
        """A random point of the ball and the box."""

    @abstractmethod
    def change(self, problem: Problem, x: Points, radius: Scalars, p: float) -> Points:
        """Another point of the ball and the box: x with a new window of a share p of the pixels."""


@final
@dataclass(frozen=True)
class Stripes(Proposal):
    """ℓ∞: vertical stripes, then windows, at x₀ ± ε, one sign per channel."""

    def first(self, problem: Problem, radius: Scalars) -> Points:
        grid = Grid.of(problem)
        sign = _signs(problem, grid.channels * grid.width).view(-1, grid.channels, 1, grid.width)
        stripes = sign.expand(-1, *grid).flatten(1)
        return into_ball(problem, problem.x0 + radius * stripes, radius)

    def change(self, problem: Problem, x: Points, radius: Scalars, p: float) -> Points:
        grid = Grid.of(problem)
        window = Window.draw(problem, grid, *grid.window(p))
        sign = _signs(problem, grid.channels)[:, :, None, None]
        return into_ball(problem, x + 2 * radius * (window.inside * sign).flatten(1), radius)


@final
@dataclass(frozen=True)
class Bumps(Proposal):
    """ℓ2 and ℓ1 (``power`` 2 and 1): bumps whose rings fall off as 1/k^decay.

    A bump takes the place of a window, together with what is left there, and has as much of Σ|δ|^power as that window,
    a second one and the distance to the surface of the ball hold.
    """

    power: int
    decay: int

    def first(self, problem: Problem, radius: Scalars) -> Points:
        grid = Grid.of(problem)
        high, wide = max(1, grid.height // TILES), max(1, grid.width // TILES)
        down, across = grid.height // high, grid.width // wide
        bump = self._bump(problem, high, wide)
        signs = _signs(problem, grid.channels * down * across).view(-1, grid.channels, down, 1, across, 1)
        tiles = (signs * bump[:, None, None, :, None, :]).reshape(-1, grid.channels, down * high, across * wide)
        rest = grid.height - down * high, grid.width - across * wide
        edges = (rest[1] // 2, rest[1] - rest[1] // 2, rest[0] // 2, rest[0] - rest[0] // 2)
        return self._onto_sphere(problem, torch.nn.functional.pad(tiles, edges).flatten(1), radius)

    def change(self, problem: Problem, x: Points, radius: Scalars, p: float) -> Points:
        grid = Grid.of(problem)
        high, wide = grid.window(p, SMALLEST)
        window, emptied = (Window.draw(problem, grid, high, wide) for _ in range(2))
        bump = self._bump(problem, high, wide)
        placed = bump[torch.arange(len(bump), device=x.device)[:, None, None], window.row, window.column]
        delta = (x - problem.x0).view(-1, *grid)
        old, both = delta * window.inside, delta * (window.inside | emptied.inside)
        new = (placed[:, None] * _signs(problem, grid.channels)[:, :, None, None]) * window.inside
        new = new + old / (TINY + self._mass(old) ** (1 / self.power))
        spare = (radius**self.power - self._mass(delta).sum(1)[:, :, 0]).clamp(min=0)[:, :, None, None]
        # In ℓ1 the original scales by the number of channels, and leaves the excess to the projection.
        mass = (spare / grid.channels + self._mass(both)) * grid.channels ** (2 - self.power)
        new = new * (mass / (TINY + self._mass(new))) ** (1 / self.power)
        delta = torch.where(window.inside, new, torch.where(emptied.inside, 0, delta)).flatten(1)
        return self._onto_sphere(problem, delta, radius)

    def _mass(self, delta: Tensor) -> Tensor:
        """Σ|δ|^power per channel, (n, channels, 1, 1)."""
        return delta.abs().pow(self.power).sum((-2, -1), keepdim=True)

    def _onto_sphere(self, problem: Problem, delta: Points, radius: Scalars) -> Points:
        """x₀ + δ, scaled to the radius (in ℓ1 only upwards), then clipped to the box and projected onto the ball."""
        scale = (radius / (TINY + problem.norm.size(delta))).clamp(min=1.0 if self.power == 1 else 0.0)
        return into_ball(problem, problem.x0 + scale * delta, radius)

    def _bump(self, problem: Problem, high: int, wide: int) -> Tensor:
        """A bump per sample, (n, high, wide), split along its longer side; a square one along either, at random."""
        upright = self._halves(high, wide, problem.x0) if high >= wide else self._halves(wide, high, problem.x0).T
        lying = problem.draws.uniform(1)[:, :, None] < 0.5
        return torch.where(lying, upright.T, upright) if high == wide else upright.expand(len(problem.x0), -1, -1)

    def _halves(self, high: int, wide: int, like: Tensor) -> Tensor:
        """A positive half over a negative one, of size 1."""
        top = high // 2
        bump = torch.cat([self._rings(top, wide, like), -self._rings(high - top, wide, like)])
        return bump / bump.abs().pow(self.power).sum() ** (1 / self.power)

    def _rings(self, high: int, wide: int, like: Tensor) -> Tensor:
        """Rings around the middle: ring m has the height Σ 1/k^decay, k > m, and all of them the size 1."""
        middle = high // 2, wide // 2
        k = torch.arange(max(middle) + 1, device=like.device, dtype=like.dtype)
        height = (1 / (k + 1) ** self.decay).flip(0).cumsum(0).flip(0)
        rows, columns = (torch.arange(n, device=like.device) - m for n, m in zip((high, wide), middle, strict=True))
        rings = height[torch.maximum(rows.abs()[:, None], columns.abs())]
        return rings / rings.pow(self.power).sum() ** (1 / self.power)


def _signs(problem: Problem, width: int) -> Points:
    """Random signs, a row of this width per sample."""
    return torch.where(problem.draws.uniform(width) < 0.5, -1.0, 1.0).to(problem.x0)


PROPOSALS: dict[str, Proposal] = {"linf": Stripes(), "l2": Bumps(2, 2), "l1": Bumps(1, 4)}


@final
@dataclass(frozen=True, kw_only=True)
class Square(FixedRadiusAttack):
    """Random search within a fixed radius: square changes that lower the margin are kept. No gradients.

    Deviations: every sample has its own windows, signs and splits, where the original shares a window among the samples
    of a batch; windows also reach the last row and column, and in ℓ2 and ℓ1 their sides may be even; in ℓ1 points
    inside the ball are scaled to its surface; targeted problems minimise the margin too, not the cross-entropy.
    Features and sequences are images of one row or one channel.

    Args:
        eps: Radius of the ball around x₀.
        queries: Proposals per start.
        p: Share of the pixels in the first windows.
        horizon: Queries over which p shrinks: 10,000 as in AutoAttack, or ``queries`` to use the whole schedule.
        restarts: Number of starts.
        stop: Whether a sample ends at its first adversarial point, at any distance up to ``eps``.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.Square(eps=0.4, queries=50)
        >>> ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).success.tolist()
        [True]
    """

    norms: ClassVar = tuple(PROPOSALS)
    cost: ClassVar = "1 forward per proposal"
    reference: ClassVar = "Andriushchenko, Croce, Flammarion, Hein 2020"
    needs_gradient: ClassVar = False

    eps: float | None = None
    queries: int = 5000
    p: float = 0.8
    horizon: int = 10_000
    restarts: int = 1
    stop: bool = True

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        proposal = PROPOSALS[problem.norm.name]
        for restart in range(self.restarts):
            x = proposal.first(problem, radius) if start is None or restart else start
            c = problem.value(x)
            for query in range(self.queries):
                self.deactivate_found(problem, radius)
                z = proposal.change(problem, x, radius, self.share(query))
                c_new = problem.value(z)
                x, c = torch.where(c_new < c, z, x), torch.minimum(c_new, c)
            self.deactivate_found(problem, radius)

    def share(self, query: int) -> float:
        """The share p after this many queries."""
        return self.p / 2.0 ** bisect_left(HALVED_AFTER, query * 10_000 // self.horizon)
