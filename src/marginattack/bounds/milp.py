r"""Exact margins in ℓ1 and ℓ∞ by mixed-integer programming (Tjeng et al. 2019), for networks that are piecewise linear.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad l_j(x) \ge l_y(x), \; x \in [lo, hi]^d

One program per class j. A ReLU y = max(z, s z) whose sign is open on [l, u] has a binary a: y ≥ z, y ≥ s z,
y ≤ z − (1 − s) l (1 − a), y ≤ s z + (1 − s) u a. A maximum over several inputs has one binary per input that can win.
The intervals come from CROWN at the distance of the nearest known adversarial point, which is also the cut-off.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from marginattack.bounds.graph import Graph
from marginattack.bounds.operations import Affine
from marginattack.bounds.propagation import Propagation
from marginattack.bounds.regions import Region
from marginattack.bounds.relaxations import MaxPool, NonLinear, ReLU
from marginattack.errors import InputError

Array = NDArray[np.float64]
Matrix = Any  # scipy.sparse.csr_array
Expression = tuple[Matrix, Array]  # rows × variables, and an offset per row
BASIS = 256  # columns of a matrix computed at a time
FEASIBILITY = 1e-6  # of HiGHS: by how much a solution may violate a constraint
LINEAR_NORMS = ("l1", "linf")  # norms that a linear program can minimise


@dataclass(frozen=True, eq=False)
class Matrices:
    """The affine operations of a graph as sparse matrices, one per input, with their offsets."""

    graph: Graph
    parts: dict[int, tuple[list[Matrix], Array]]


def check_piecewise_linear(graph: Graph) -> None:
    """Raise ``InputError`` for a network that is not piecewise linear."""
    for node in graph.nodes:
        if isinstance(node.rule, NonLinear) and not isinstance(node.rule, ReLU | MaxPool):
            raise InputError(
                f"exact margins need a piecewise linear network, without {node.rule.name}: use method='alpha'"
            )


def make_matrices(graph: Graph) -> Matrices:
    """The matrices of a piecewise linear network in float64."""
    parts = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node.rule, Affine):
            rule, shapes = node.rule.to(torch.float64), [graph.nodes[i].shape for i in node.inputs]
            size = int(np.prod(node.shape))
            offset = np.zeros(size) if rule.bias is None else rule.bias.expand(node.shape).flatten().cpu().numpy()
            parts[index] = [_matrix(rule, shapes, k) for k in range(len(shapes))], offset
    return Matrices(graph, parts)


@torch.no_grad()
def _matrix(rule: Affine, shapes: list[tuple[int, ...]], which: int) -> Matrix:
    """L with respect to one input, by applying it to unit vectors."""
    size, device = int(np.prod(shapes[which])), None if rule.weight is None else rule.weight.device
    columns = []
    for first in range(0, size, BASIS):
        count = min(BASIS, size - first)
        inputs = [torch.zeros(count, *shape, dtype=torch.float64, device=device) for shape in shapes]
        inputs[which].flatten(1)[torch.arange(count), first + torch.arange(count)] = 1
        columns.append(sparse.csr_array(rule.linear(rule.weight, *inputs).flatten(1).cpu().numpy()))
    return sparse.csr_array(sparse.vstack(columns).T)


@dataclass(eq=False)
class Program:
    """A mixed-integer program under construction; expressions are (rows × variables, offset)."""

    lower: list[Array] = field(default_factory=list)
    upper: list[Array] = field(default_factory=list)
    integral: list[Array] = field(default_factory=list)
    rows: list[Expression] = field(default_factory=list)  # expressions ≤ 0
    count: int = 0

    def variables(self, lower: Array, upper: Array, *, integral: bool = False) -> Expression:
        """New variables as an expression."""
        n = len(lower)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integral.append(np.full(n, float(integral)))
        self.count += n
        columns = np.arange(self.count - n, self.count)
        return sparse.csr_array((np.ones(n), (np.arange(n), columns)), shape=(n, self.count)), np.zeros(n)

    def at_most_zero(self, *terms: tuple[float | Array, Expression]) -> None:
        """Σ factor · expression ≤ 0, row by row."""
        matrix, offset = self.combine(*terms)
        self.rows.append((matrix, offset))

    def combine(self, *terms: tuple[float | Array, Expression]) -> Expression:
        """Σ factor · expression."""
        total, constant = sparse.csr_array((len(terms[0][1][1]), self.count)), np.zeros(len(terms[0][1][1]))
        for factor, (matrix, offset) in terms:
            scale = np.broadcast_to(factor, len(offset)).astype(float)
            total = total + sparse.diags_array(scale) @ widen(matrix, self.count)
            constant = constant + scale * offset
        return sparse.csr_array(total), constant

    def solve(self, cost: Array, seconds: float) -> Any:
        """The solution by HiGHS."""
        matrix = sparse.vstack([widen(each, self.count) for each, _ in self.rows], format="csr")
        right = -np.concatenate([offset for _, offset in self.rows])
        limits = Bounds(np.concatenate(self.lower), np.concatenate(self.upper))
        return milp(
            cost, integrality=np.concatenate(self.integral), bounds=limits,
            constraints=LinearConstraint(matrix, -np.inf, right), options={"time_limit": seconds, "mip_rel_gap": 1e-4},
        )  # fmt: skip


def widen(matrix: Matrix, count: int) -> Matrix:
    """The same rows over more variables."""
    return sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], count))


@dataclass(frozen=True, eq=False)
class Encoding:
    """A network over the region of one sample: the program, and the expressions of its input and logits."""

    program: Program
    inputs: Expression
    logits: Expression
    size: Expression  # the norm of the perturbation, one row
    centre: Array


def encode(matrices: Matrices, propagation: Propagation) -> Encoding:
    """The program of the first sample of a propagation in float64."""
    program = Program()
    inputs, total, centre = _encode_region(program, propagation.region)
    found = [(inputs[0], centre)]
    for index, node in enumerate(matrices.graph.nodes[1:], 1):
        source, (low, high) = found[node.inputs[0]], _first(*propagation.bounds[node.inputs[0]])
        if isinstance(node.rule, Affine):
            maps, offset = matrices.parts[index]
            terms = []
            for each, number in zip(maps, node.inputs, strict=True):
                terms.append((1.0, (each @ widen(found[number][0], program.count), each @ found[number][1])))
            matrix, constant = program.combine(*terms)
            found.append((matrix, constant + offset))
        elif isinstance(node.rule, ReLU):
            found.append(_relu(program, source, low, high, node.rule.slope))
        elif isinstance(node.rule, MaxPool):
            found.append(_max_pool(program, source, node.rule, propagation.bounds[node.inputs[0]]))
    return Encoding(program, inputs, found[-1], total, centre)


def _first(*values: Tensor) -> tuple[Array, ...]:
    """The first sample of each, flat."""
    return tuple(each[0].flatten().double().cpu().numpy() for each in values)


def _encode_region(program: Program, region: Region) -> tuple[Expression, Expression, Array]:
    """The perturbation x − x₀, its norm, and x₀."""
    centre, down, up = _first(region.centre, region.down, region.up)
    radius, count = float(region.radius[0]), 1 if region.norm == "linf" else len(centre)
    inputs = program.variables(-down, up)
    sizes = program.variables(np.zeros(count), np.full(count, radius))
    spread = pick(sizes, np.zeros(len(centre), dtype=int)) if region.norm == "linf" else sizes
    for sign in (1.0, -1.0):
        program.at_most_zero((sign, inputs), (-1.0, spread))
    total = sparse.csr_array(sizes[0].sum(0)[None])
    program.at_most_zero((1.0, (total, np.array([-radius]))))
    return inputs, (total, np.zeros(1)), centre


def _relu(program: Program, z: Expression, low: Array, high: Array, slope: float) -> Expression:
    """New variables for the outputs; the open ones are tied to binaries."""
    y = program.variables(np.maximum(low, slope * low), np.maximum(high, slope * high))
    crossing = (low < 0) & (high > 0)
    closed, chosen = np.flatnonzero(~crossing), np.flatnonzero(crossing)
    fixed = np.where(low >= 0, 1.0, slope)[closed]
    for sign in (1.0, -1.0):
        program.at_most_zero((sign, pick(y, closed)), (-sign * fixed, pick(z, closed)))
    binary = program.variables(np.zeros(len(chosen)), np.ones(len(chosen)), integral=True)
    y_open, z_open = pick(y, chosen), pick(z, chosen)
    program.at_most_zero((-1.0, y_open), (1.0, z_open))
    program.at_most_zero((-1.0, y_open), (slope, z_open))
    inactive = binary[0], binary[1] - 1  # a − 1
    program.at_most_zero((1.0, y_open), (-1.0, z_open), (-(1 - slope) * low[chosen], inactive))
    program.at_most_zero((1.0, y_open), (-slope, z_open), (-(1 - slope) * high[chosen], binary))
    return y


def pick(expression: Expression, rows: Any) -> Expression:
    """Some rows of an expression."""
    return expression[0][rows], expression[1][rows]


def _max_pool(program: Program, z: Expression, rule: MaxPool, before: tuple[Tensor, Tensor]) -> Expression:
    """New variables for the outputs, with one binary per input that can be the largest."""
    low, high = _first(*(rule.value(each) for each in before))
    numbers = torch.arange(before[0][0].numel(), device=before[0].device).to(before[0]).view_as(before[0][:1])
    windows = [
        rule.windows(each[:1])[0].flatten(2).mT.flatten(0, 1).double().cpu().numpy() for each in (*before, numbers)
    ]
    lows, highs = windows[:2]
    inside = windows[2] >= 0
    able = inside & (highs >= lows.max(1, keepdims=True))
    output, column = np.nonzero(able)
    inputs = windows[2][output, column].astype(int)
    y = program.variables(low, high)
    binary = program.variables(np.zeros(len(inputs)), np.ones(len(inputs)), integral=True)
    room = high[output] - lows[output, column]
    program.at_most_zero((-1.0, pick(y, output)), (1.0, pick(z, inputs)))
    program.at_most_zero((1.0, pick(y, output)), (-1.0, pick(z, inputs)), (room, (binary[0], binary[1] - 1)))
    gather = sparse.csr_array((np.ones(len(output)), (output, np.arange(len(output)))), shape=(len(low), len(output)))
    chosen = gather @ binary[0], -np.ones(len(low))
    for sign in (1.0, -1.0):
        program.at_most_zero((sign, chosen))
    return y


@dataclass(frozen=True)
class Answer:
    """The result for one class: no adversarial point is nearer than ``lower``; the nearest point found, if any."""

    lower: float
    point: Array | None


def solve_class(encoding: Encoding, label: int, other: int, cutoff: float, slack: float, deadline: float) -> Answer:
    """The nearest point of one class within the cut-off; ``slack`` bounds the rounding error of the logits."""
    program = encoding.program
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return Answer(0.0, None)
    rows = len(program.rows)
    difference = program.combine((1.0, pick(encoding.logits, [label])), (-1.0, pick(encoding.logits, [other])))
    program.rows.append((difference[0], difference[1] - slack - FEASIBILITY))
    program.rows.append((encoding.size[0], np.array([-cutoff])))
    try:
        cost = widen(encoding.size[0], program.count).toarray()[0]
        found = program.solve(cost, min(seconds, 1e7))
    finally:
        del program.rows[rows:]
    if found.status == 2:  # infeasible: nothing of this class within the cut-off
        return Answer(cutoff, None)
    bound = found.mip_dual_bound
    point = None if found.x is None else encoding.centre + found.x[: len(encoding.centre)]
    lower = 0.0 if bound is None or not np.isfinite(bound) else min(float(bound), cutoff)
    return Answer(lower, point)
