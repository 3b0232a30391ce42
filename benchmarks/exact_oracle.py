r"""Exact margins of small ReLU networks by programs at a fixed radius, independent of marginattack.bounds.

Whether a class is reached within a radius r,

.. math:: l_j(x) \ge l_y(x), \quad \|x - x_0\| \le r, \; x \in [0, 1]^d,

is a mixed-integer feasibility problem in which only ReLUs of open sign have a binary (Tjeng et al. 2019). It is far
easier than minimising the distance, whose variable ties all pixels together. From the nearest known point inwards:
where the program has a solution, a linear program over the linear region of that solution gives a nearer point; the
margin is exact once no class is reached within (1 - GAP) times the nearest point.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from torch import Tensor, nn

GAP = 2e-4  # the margin is known to this share
Array = NDArray[np.float64]
Affine = tuple[Array, Array]  # a matrix over the variables, and an offset


@torch.no_grad()
def matrices(model: nn.Sequential, shape: tuple[int, ...]) -> list[Affine]:
    """Weights and offsets of the affine layers, between which there are ReLUs."""
    found: list[Affine] = []
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            size = int(np.prod(shape))
            inputs = torch.cat([torch.zeros(1, size), torch.eye(size)]).view(-1, *shape).double()
            outputs = nn.Sequential(layer).double()(inputs).flatten(1).numpy()
            layer.float()
            found.append(((outputs[1:] - outputs[0]).T, outputs[0]))
        shape = tuple(layer.to(torch.float32)(torch.zeros(1, *shape)).shape[1:])
    return found


@dataclass(eq=False)
class Program:
    """Variables with bounds, and rows that are at most a number."""

    low: Array
    high: Array
    integral: Array
    rows: list[tuple[Array, Array]] = field(default_factory=list)

    def add(self, high: Array, *, integral: bool = False) -> slice:
        """New variables from 0 to these numbers."""
        n = len(self.low)
        self.low = np.concatenate([self.low, np.zeros(len(high))])
        self.high = np.concatenate([self.high, high])
        self.integral = np.concatenate([self.integral, np.full(len(high), float(integral))])
        return slice(n, n + len(high))

    def at_most(self, a: Array, b: Array) -> None:
        """Rows a v ≤ b."""
        if len(b):
            self.rows.append((a, b))

    def matrix(self) -> tuple[Array, Array]:
        n = len(self.low)
        padded = [np.pad(a, ((0, 0), (0, n - a.shape[1]))) for a, _ in self.rows]
        return np.concatenate([np.zeros((0, n)), *padded]), np.concatenate([np.zeros(0), *(b for _, b in self.rows)])

    def maximum(self, a: Array, c: float) -> float:
        """The largest a v + c, with binaries relaxed."""
        matrix, right = self.matrix()
        cost = -np.pad(a, (0, len(self.low) - len(a)))
        limits = list(zip(self.low, self.high, strict=True))
        answer = linprog(cost, A_ub=matrix, b_ub=right, bounds=limits, method="highs")
        if answer.status == 2:  # infeasible
            return -np.inf
        assert answer.fun is not None, answer.message
        return c - answer.fun

    def feasible(self, seconds: float) -> Any:
        """Any solution; None where there is none. The last row is made small, which leads the search.

        Raises:
            TimeoutError: Undecided within the time.
        """
        matrix, right = self.matrix()
        answer = milp(
            matrix[-1], integrality=self.integral.astype(int), bounds=Bounds(self.low, self.high),
            constraints=LinearConstraint(matrix, -np.inf, right),
            options={"time_limit": max(seconds, 0.01), "mip_rel_gap": 1e6},  # ends at the first solution
        )  # fmt: skip
        if answer.x is None and answer.status != 2:
            raise TimeoutError
        return answer.x


@dataclass(frozen=True, eq=False)
class Oracle:
    """A network, one input with its label, and the norm."""

    layers: list[Affine]
    x: Array
    label: int
    norm: str

    @property
    def spread(self) -> Array:
        """The perturbation as a matrix over the first variables: itself, or its positive and negative parts."""
        unit = np.eye(len(self.x))
        return unit if self.norm == "linf" else np.concatenate([unit, -unit], 1)

    def region(self, radius: float) -> Program:
        """The perturbations within a radius."""
        d = len(self.x)
        if self.norm == "linf":
            return Program(np.maximum(-radius, -self.x), np.minimum(radius, 1 - self.x), np.zeros(d))
        high = np.minimum(radius, np.concatenate([1 - self.x, self.x]))
        program = Program(np.zeros(2 * d), high, np.zeros(2 * d))
        program.at_most(np.ones((1, 2 * d)), np.array([radius]))
        return program

    def encode(self, radius: float) -> tuple[Program, Affine]:
        """The network within a radius, and its logits; bounds of open units are tightened by linear programs."""
        program = self.region(radius)
        a, c = self.spread, self.x
        for weight, offset in self.layers[:-1]:
            a, c = weight @ a, weight @ c + offset
            low, high = self._intervals(program, a, c)
            a, c = _relu(program, a, c, low, high)
        weight, offset = self.layers[-1]
        return program, (weight @ a, weight @ c + offset)

    def _intervals(self, program: Program, a: Array, c: Array) -> tuple[Array, Array]:
        n = a.shape[1]
        up, down = np.maximum(a, 0), np.minimum(a, 0)
        high, low = (
            c + up @ program.high[:n] + down @ program.low[:n],
            c + up @ program.low[:n] + down @ program.high[:n],
        )
        if program.rows:  # otherwise the region is a box, where intervals are exact
            for unit in np.flatnonzero((low < 0) & (high > 0)):
                high[unit] = min(high[unit], program.maximum(a[unit], c[unit]))
                if high[unit] > 0:
                    low[unit] = max(low[unit], -program.maximum(-a[unit], -c[unit]))
        return low - 1e-7, high + 1e-7

    def reaches(self, other: int, radius: float, encoded: tuple[Program, Affine], deadline: float) -> Any:
        """A point of the class within the radius, or None."""
        program, (a, c) = encoded
        lead, least = a[other] - a[self.label], c[other] - c[self.label]
        if program.maximum(lead, least) < 0:
            return None
        posed = Program(program.low, program.high, program.integral, list(program.rows))
        posed.at_most(-lead[None], np.array([least]))
        v = posed.feasible(deadline - time.monotonic())
        return None if v is None else self.x + self.spread @ v[: self.spread.shape[1]]

    def nearest(self, point: Array, other: int) -> float:
        """The least distance to the class inside the linear region of a point; infinity if rounding leaves none."""
        program = self.region(np.inf if self.norm == "linf" else 1e9)
        program.rows.clear()
        a, c, value = self.spread, self.x, point
        for weight, offset in self.layers[:-1]:
            a, c, value = weight @ a, weight @ c + offset, weight @ value + offset
            on = value > 0
            sign = np.where(on, -1.0, 1.0)
            program.at_most(sign[:, None] * a, -sign * c)
            a, c, value = a * on[:, None], c * on, value * on
        weight, offset = self.layers[-1]
        row = weight[self.label] - weight[other]
        program.at_most((row @ a)[None], np.array([-(row @ c) - offset[self.label] + offset[other]]))
        cost = np.ones(len(program.low))
        if self.norm == "linf":
            size = program.add(np.ones(1))
            cost = np.pad(np.zeros(size.start), (0, 1), constant_values=1.0)
            for side in (1.0, -1.0):
                rows = np.concatenate([side * np.eye(size.start), -np.ones((size.start, 1))], 1)
                program.at_most(rows, np.zeros(size.start))
        matrix, right = program.matrix()
        limits = list(zip(program.low, program.high, strict=True))
        answer = linprog(cost, A_ub=matrix, b_ub=right, bounds=limits, method="highs")
        return np.inf if answer.fun is None else float(answer.fun)

    def others(self) -> Iterator[int]:
        """The other classes, the likeliest first."""
        value = self.x
        for k, (weight, offset) in enumerate(self.layers):
            value = weight @ (np.maximum(value, 0) if k else value) + offset
        yield from (int(j) for j in np.argsort(-value) if j != self.label)

    def solve(self, upper: float, seconds: float) -> tuple[float, bool]:
        """The least distance found, and whether none is less by more than GAP; ``upper`` is that of a known point."""
        deadline, encoded = time.monotonic() + seconds, None
        try:
            for other in self.others():
                while True:
                    radius = (1 - GAP) * upper
                    encoded = encoded or self.encode(radius)
                    point = self.reaches(other, radius, encoded, deadline)
                    if point is None:
                        break
                    upper, encoded = min(radius, self.nearest(point, other)), None
        except TimeoutError:
            return upper, False
        return upper, True


def _relu(program: Program, a: Array, c: Array, low: Array, high: Array) -> Affine:
    """Outputs of ReLUs: linear where the sign is known, else a variable tied to a binary."""
    is_open = np.flatnonzero((low < 0) & (high > 0))
    y = program.add(high[is_open])
    binary = program.add(np.ones(len(is_open)), integral=True)
    n = len(program.low)
    wide = np.pad(a, ((0, 0), (0, n - a.shape[1])))
    out, outputs, one = wide[is_open], np.zeros((len(is_open), n)), np.zeros((len(is_open), n))
    outputs[:, y], one[:, binary] = np.eye(len(is_open)), np.eye(len(is_open))
    program.at_most(out - outputs, -c[is_open])  # y ≥ z
    program.at_most(outputs - out - low[is_open, None] * one, c[is_open] - low[is_open])  # y ≤ z − l (1 − a)
    program.at_most(outputs - high[is_open, None] * one, np.zeros(len(is_open)))  # y ≤ u a
    active = (low >= 0)[:, None]
    result = np.where(active, wide, 0.0)
    result[is_open] = outputs
    return result, np.where(active[:, 0], c, 0.0)


def solve(model: nn.Module, image: Tensor, label: int, norm: str, upper: float, seconds: float) -> tuple[float, bool]:
    """The exact margin of one input, or the least distance found, and whether it is exact."""
    assert isinstance(model, nn.Sequential)
    layers = matrices(model, tuple(image.shape))
    return Oracle(layers, image.double().flatten().numpy(), label, norm).solve(upper, seconds)
