r"""Bound propagation: intervals forwards (IBP), linear functions backwards (CROWN), with optimised slopes (α-CROWN).

A linear function of a node is bounded from below by going backwards through the network: affine operations are
transposed, non-linear ones replaced by the line that is lower for the sign of the coefficient, until a linear function
of the input is left, whose least value on the region is known. The lines need bounds of every non-linear operation's
input; these come from intervals and, for neurons whose sign intervals leave open, from the same backward propagation.

**Rounding.** Each affine node's output, as a model computes it in floating point, is W x + b + e with
:math:`|e| \le \gamma (|W| |x| + |b|)`; the coefficients that propagation computes have errors of the same form. Both
are charged where they arise: the bound is lowered by Σ |A| e, with |x| from the node's own bounds. So a bound holds for
the network in real arithmetic and as it is computed, whatever the order of its sums.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from marginattack.bounds.graph import Graph
from marginattack.bounds.operations import Affine, Diagonal, Rows, Shape, Sum, rounding
from marginattack.bounds.regions import Region, least
from marginattack.bounds.relaxations import Lines, NonLinear, ReLU

TILE = 2  # height and width of the neurons whose bounds are propagated together: they read nearly the same inputs
ERROR_FACTOR = 1.01  # covers the rounding of the error bounds themselves


class OutOfTime(Exception):
    """The deadline has passed."""


@dataclass(frozen=True)
class Limits:
    """What a propagation may use: ``chunk`` numbers per tensor of coefficients, and time up to ``deadline``."""

    chunk: int = 2**22
    deadline: float = float("inf")  # of time.monotonic()

    def check(self) -> None:
        """Raise ``OutOfTime`` when the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise OutOfTime


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """How bounds are propagated: a value of ``METHODS``, or one with other numbers.

    Args:
        name: What a certificate by it is called.
        backward: Whether linear functions are propagated, or intervals alone.
        steps: Steps of Adam on the slopes of the lines.
        rate: The step size, as a share of a slope of 1; falls to a tenth.
        exact: Whether a solver closes what the relaxation leaves open.

    Example:
        >>> from marginattack.bounds import Relaxation
        >>> Relaxation(name="alpha", backward=True, steps=50).steps
        50
    """

    name: str
    backward: bool
    steps: int = 0
    rate: float = 0.2
    exact: bool = False


IBP = Relaxation(name="ibp", backward=False)
CROWN = Relaxation(name="crown", backward=True)
ALPHA = Relaxation(name="alpha", backward=True, steps=20)
EXACT = replace(ALPHA, name="exact", exact=True)
METHODS = {method.name: method for method in (IBP, CROWN, ALPHA, EXACT)}


@dataclass(eq=False)
class Propagation:
    """Bounds of all nodes of a network over one region, and of linear functions of its nodes."""

    graph: Graph
    region: Region
    method: Relaxation
    limits: Limits = Limits()
    bounds: list[tuple[Tensor, Tensor]] = field(init=False, default_factory=list)
    lines: dict[int, Lines] = field(init=False, default_factory=dict)
    errors: dict[int, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        region = self.region
        slack = rounding(2, region.centre.dtype) * region.magnitude
        self.bounds.append((region.centre - region.down - slack, region.centre + region.up + slack))
        readers = self._readers()
        exact = self._exact_intervals()
        for index, node in enumerate(self.graph.nodes[1:], 1):
            self.limits.check()
            rule = node.rule
            if isinstance(rule, Affine):
                self._enter_affine(index, rule)
                if self.method.backward and index in readers and index not in exact:
                    self._tighten(index, readers[index])
            elif rule is not None:
                lo, hi = self.bounds[node.inputs[0]]
                self.bounds.append(rule.image(lo, hi, self.graph.model_dtype))
                lines = rule.lines(lo, hi, [])
                self.lines[index] = lines if self.method.backward else self._constant(index, lines)
                self.errors[index] = self._line_errors(index, rule, self.lines[index])

    def _readers(self) -> dict[int, list[NonLinear]]:
        """The non-linear operations that read each node."""
        found: dict[int, list[NonLinear]] = {}
        for node in self.graph.nodes[1:]:
            if isinstance(node.rule, NonLinear):
                found.setdefault(node.inputs[0], []).append(node.rule)
        return found

    def _exact_intervals(self) -> set[int]:
        """Nodes whose intervals nothing can tighten: one affine operation, and scalings, after a box."""
        independent, exact = ({0}, {0}) if self.region.norm == "linf" else (set(), set())
        for index, node in enumerate(self.graph.nodes[1:], 1):
            if isinstance(node.rule, Affine) and len(node.inputs) == 1:
                source, scales = node.inputs[0], isinstance(node.rule, Diagonal | Sum) or not node.rule.fan_in
                if source in independent or (scales and source in exact):
                    exact.add(index)
                if scales and source in independent:
                    independent.add(index)
        return exact

    def _enter_affine(self, index: int, rule: Affine) -> None:
        """The interval of an affine node, and its rounding errors."""
        inputs = [self.bounds[i] for i in self.graph.nodes[index].inputs]
        dtype = inputs[0][0].dtype
        middle = [(lo + hi) / 2 for lo, hi in inputs]
        half = [torch.maximum(hi - m, m - lo) for (lo, hi), m in zip(inputs, middle, strict=True)]
        size = rule.magnitude(*(torch.maximum(lo.abs(), hi.abs()) for lo, hi in inputs))
        model = rounding(rule.fan_in, self.graph.model_dtype) if rule.fan_in else 0.0
        spread = rule.spread(*half) + (model + rounding(rule.fan_in + 8, dtype)) * ERROR_FACTOR * size
        value = rule.value(*middle)
        self.bounds.append((value - spread, value + spread))
        errors = (model + rounding(rule.fan_out + 8 + len(self.graph.nodes), dtype)) * size
        if rule.bias is not None:
            errors = errors + rounding(size[0].numel() + len(self.graph.nodes), dtype) * rule.bias.abs()
        self.errors[index] = ERROR_FACTOR * errors[:, None]

    def _constant(self, index: int, lines: Lines) -> Lines:
        """Lines without slope: intervals as linear functions."""
        low, high = (each[:, None] for each in self.bounds[index])
        flat = torch.zeros_like(lines.lower_slope)
        return Lines(flat, flat, high, low)

    def _line_errors(self, index: int, rule: NonLinear, lines: Lines) -> Tensor:
        inputs = self.graph.nodes[index].inputs[0]
        return ERROR_FACTOR * rule.errors(*self.bounds[inputs], lines, self.graph.model_dtype)

    def _tighten(self, index: int, readers: list[NonLinear]) -> None:
        """Bound those neurons by backward propagation whose bounds their readers need tighter."""
        lo, hi = self.bounds[index]
        needed = torch.stack([reader.undecided(lo, hi) for reader in readers]).any(0)
        if not bool(needed.any()):
            return
        lo, hi = lo.clone(), hi.clone()
        most = max(prod(node.shape) for node in self.graph.nodes[: index + 1])
        for units, rows in _unit_rows(needed.any(0), max(1, self.limits.chunk // (most * len(lo))), lo.dtype):
            self.limits.check()
            low, _ = self.lower(index, rows)
            high, _ = self.lower(index, Rows(-rows.a, rows.corner))
            flat_l, flat_u = lo.flatten(1), hi.flatten(1)
            flat_l[:, units] = torch.fmax(flat_l[:, units], low)
            flat_u[:, units] = torch.fmin(flat_u[:, units], -high)
        self.bounds[index] = lo, torch.maximum(lo, hi)

    def lower(self, start: int, rows: Rows, slopes: dict[int, list[Tensor]] | None = None) -> tuple[Tensor, Tensor]:
        """Lower bounds of linear functions of a node over the region, (n, rows), and the rounding in them.

        The rounding is subtracted already. ``slopes`` replaces free slopes of the lines.
        """
        a = rows.a.expand(len(self.region.centre), *rows.a.shape[1:])
        pending, constant, error = {start: Rows(a, rows.corner)}, a.new_zeros(a.shape[:2]), a.new_zeros(a.shape[:2])
        for index in range(start, 0, -1):
            current = pending.pop(index, None)
            if current is None:
                continue
            node = self.graph.nodes[index]
            shapes = [self.graph.nodes[i].shape for i in node.inputs]
            errors, found = self.errors[index], []
            if isinstance(node.rule, Affine):
                found = node.rule.transpose(current, node.shape, shapes)
                if node.rule.bias is not None:
                    constant = constant + current.dot(node.rule.bias.expand(1, 1, *node.shape))
            elif node.rule is not None:
                lines = self.lines[index]
                if slopes and slopes[index]:
                    lines = node.rule.lines(*self.bounds[node.inputs[0]], slopes[index])
                    errors = self._line_errors(index, node.rule, lines)
                passed, more = node.rule.backward(current, lines, shapes[0])
                found, constant = [passed], constant + more
            error = error + current.charge(errors)
            for source, each, shape in zip(node.inputs, found, shapes, strict=True):
                pending[source] = pending[source].add(each, shape) if source in pending else each
        return self._concretise(pending.get(0), constant, error)

    def _concretise(self, rows: Rows | None, constant: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """The least value of linear functions of the input."""
        value = constant
        if rows is not None:
            centre, down, up = (
                rows.crop(each[:, None]).flatten(2) for each in (self.region.centre, self.region.down, self.region.up)
            )
            a = rows.a.flatten(2)
            value = constant + (a * centre).sum(2) + least(self.region, a, down, up)
            size = centre.abs() + torch.maximum(down, up)
            error = error + rounding(2 * a.shape[2] + 64, a.dtype) * ((a.abs() * size).sum(2) + constant.abs())
        error = ERROR_FACTOR * error
        return (value - error).nan_to_num(nan=-torch.inf), error.nan_to_num(nan=torch.inf)

    def output(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Lower bounds of linear functions (n, rows, classes) of the logits, and the rounding in them.

        With α-CROWN, the best over the steps; it ends once every bound is positive.
        """
        last = len(self.graph.nodes) - 1
        with torch.no_grad():
            best, error = self.lower(last, Rows(rows))
        if not self.method.steps:
            return best, error
        slopes = {}
        for index, node in enumerate(self.graph.nodes):
            if isinstance(node.rule, NonLinear):
                start = node.rule.start(*self.bounds[node.inputs[0]], rows.shape[1])
                slopes[index] = [each.detach().clone().requires_grad_() for each in start]
        free = [each for group in slopes.values() for each in group]
        if not free:
            return best, error
        adam = torch.optim.Adam(free, lr=self.method.rate)
        decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / self.method.steps))
        for _ in range(self.method.steps):
            if time.monotonic() > self.limits.deadline or bool((best > 0).all()):
                break
            adam.zero_grad()
            value, slack = self.lower(last, Rows(rows), slopes)
            torch.where(torch.isfinite(value), -value, 0).sum().backward()
            adam.step()
            decay.step()
            with torch.no_grad():
                for index, group in slopes.items():
                    rule = self.graph.nodes[index].rule
                    if isinstance(rule, ReLU):
                        group[0].clamp_(rule.slope, 1.0)
                error = torch.where(value > best, slack, error)
                best = torch.maximum(best, value)
        return best.detach(), error.detach()


def _unit_rows(needed: Tensor, most: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Rows]]:
    """Rows that pick single neurons, at most so many at a time: their flat numbers, and the rows.

    Neurons of an image are taken in small tiles, so that backward propagation handles what they read and no more.
    """
    numbers = torch.arange(needed.numel(), device=needed.device).view(needed.shape)
    for (top, left), tile in _tiles(needed.shape):
        inside = numbers[tile]
        chosen = needed[tile].flatten().nonzero()[:, 0]
        for part in chosen.split(most):
            a = torch.zeros(1, len(part), inside.numel(), dtype=dtype, device=needed.device)
            a[0, torch.arange(len(part)), part] = 1
            corner = (top, left) if needed.ndim == 3 else None
            yield inside.flatten()[part], Rows(a.unflatten(2, inside.shape), corner)


def _tiles(shape: Shape) -> Iterator[tuple[tuple[int, int], tuple[slice, ...]]]:
    if len(shape) != 3:
        yield (0, 0), (slice(None),) * len(shape)
        return
    for top in range(0, shape[1], TILE):
        for left in range(0, shape[2], TILE):
            yield (top, left), (slice(None), slice(top, top + TILE), slice(left, left + TILE))
