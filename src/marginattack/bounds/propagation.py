r"""Bound propagation: intervals forwards (IBP), linear functions backwards (CROWN), with optimised slopes (α-CROWN).

A linear function of a node is bounded from below by going backwards through the network: affine operations are
transposed, non-linear ones replaced by the line that is lower for the sign of the coefficient, until a linear function
of the input is left, whose minimum over the region is known. The lines need bounds of every non-linear operation's
input; these come from intervals and, for neurons whose sign intervals leave open, from the same backward propagation.

**Rounding.** Each affine node's output, as a model computes it in floating point, is W x + b + e with
:math:`|e| \le \gamma (|W| |x| + |b|)`; the coefficients that propagation computes have errors of the same form. Both
are charged where they arise: the bound is lowered by Σ |A| e, with |x| from the node's own bounds. So a bound holds for
the network in real arithmetic and in floating point, for any order of its sums.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from marginattack.bounds.graph import Graph
from marginattack.bounds.operations import Affine, Diagonal, Rows, Shape, Sum, rounding
from marginattack.bounds.regions import Region, least_value
from marginattack.bounds.relaxations import Lines, NonLinear, ReLU

TILE = 2  # side of the tiles of neurons propagated together, since they read nearly the same inputs
ERROR_FACTOR = 1.01  # covers the rounding of the error bounds themselves


class OutOfTime(Exception):
    """The deadline has passed."""


@dataclass(frozen=True)
class Limits:
    """Limits of a propagation: ``chunk`` numbers per tensor of coefficients, and time until ``deadline``."""

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
        name: The name of its certificates.
        backward: Whether linear functions are propagated, or only intervals.
        steps: Steps of Adam on the slopes of the lines, for bounds of the logits.
        inner_steps: The same for bounds of hidden neurons.
        rate: The step size, relative to a slope of 1; falls to a tenth.
        exact: Whether branch and bound or a solver closes brackets that the relaxation leaves open.

    Example:
        >>> from marginattack.bounds import Relaxation
        >>> Relaxation(name="alpha", backward=True, steps=50).steps
        50
    """

    name: str
    backward: bool
    steps: int = 0
    inner_steps: int = 0
    rate: float = 0.2
    exact: bool = False


IBP = Relaxation(name="ibp", backward=False)
CROWN = Relaxation(name="crown", backward=True)
ALPHA = Relaxation(name="alpha", backward=True, steps=20)
EXACT = replace(ALPHA, name="exact", exact=True)
METHODS = {method.name: method for method in (IBP, CROWN, ALPHA, EXACT)}


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear functions of the input: coefficients (None: all 0), constants (n, rows), and the rounding in them."""

    rows: Rows | None
    constant: Tensor
    error: Tensor


@dataclass(eq=False)
class Propagation:
    """Bounds of all nodes of a network over one region, and of linear functions of its nodes."""

    graph: Graph
    region: Region
    method: Relaxation
    limits: Limits = Limits()
    given: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # known bounds of some nodes
    bounds: list[tuple[Tensor, Tensor]] = field(init=False, default_factory=list)
    lines: dict[int, Lines] = field(init=False, default_factory=dict)
    errors: dict[int, Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        region = self.region
        slack = rounding(2, region.centre.dtype) * region.magnitude
        self.empty = torch.zeros(len(region.centre), dtype=torch.bool, device=region.centre.device)
        self.bounds.append((region.centre - region.down - slack, region.centre + region.up + slack))
        self._intersect(0)
        readers = self._readers()
        exact = self._exact_intervals()
        for index, node in enumerate(self.graph.nodes[1:], 1):
            self.limits.check()
            rule = node.rule
            if isinstance(rule, Affine):
                self._enter_affine(index, rule)
                self._intersect(index)
                if self.method.backward and index in readers and index not in exact:
                    self._tighten(index, readers[index])
            elif rule is not None:
                lo, hi = self.bounds[node.inputs[0]]
                self.bounds.append(rule.image(lo, hi, self.graph.model_dtype))
                self._intersect(index)
                lines = rule.lines(lo, hi, [])
                self.lines[index] = lines if self.method.backward else self._constant(index, lines)
                self.errors[index] = self._line_errors(index, rule, self.lines[index])

    def _intersect(self, index: int) -> None:
        """Intersect with the given bounds; if they contradict each other, the region of that sample is empty."""
        if index in self.given:
            low, high = (own.expand_as(g) for own, g in zip(self.bounds[index], self.given[index], strict=True))
            low, high = torch.maximum(low, self.given[index][0]), torch.minimum(high, self.given[index][1])
            self.empty |= (low > high).flatten(1).any(1)
            self.bounds[index] = low, torch.maximum(low, high)

    def _readers(self) -> dict[int, list[NonLinear]]:
        """The non-linear operations that read each node."""
        found: dict[int, list[NonLinear]] = {}
        for node in self.graph.nodes[1:]:
            if isinstance(node.rule, NonLinear):
                found.setdefault(node.inputs[0], []).append(node.rule)
        return found

    def _exact_intervals(self) -> set[int]:
        """Nodes whose intervals are tight already: one affine operation, and scalings, after a box."""
        box = self.region.norm == "linf" and self.region.cut is None
        independent, exact = ({0}, {0}) if box else (set(), set())
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
        """Bound neurons by backward propagation if their readers need tighter bounds."""
        lo, hi = self.bounds[index]
        needed = torch.stack([reader.undecided(lo, hi) for reader in readers]).any(0)
        if not bool(needed.any()):
            return
        lo, hi = (each.clone(memory_format=torch.contiguous_format) for each in (lo, hi))
        flat_l, flat_u = lo.view(len(lo), -1), hi.view(len(hi), -1)
        rows_of = _own_unit_rows if self.given else _unit_rows
        for units, rows in rows_of(needed, self._most_rows(index, self.method.inner_steps), lo.dtype):
            self.limits.check()
            low, _ = self._optimised(index, rows, self.method.inner_steps)
            high, _ = self._optimised(index, Rows(-rows.a, rows.corner), self.method.inner_steps)
            flat_l.scatter_(1, units, torch.fmax(flat_l.gather(1, units), low))
            flat_u.scatter_(1, units, torch.fmin(flat_u.gather(1, units), -high))
        self.empty |= (lo > hi).flatten(1).any(1)
        self.bounds[index] = lo, torch.maximum(lo, hi)

    def lower(self, start: int, rows: Rows, slopes: Mapping[int, list[Tensor]] | None = None) -> tuple[Tensor, Tensor]:
        """Lower bounds of linear functions of a node over the region, (n, rows), and the rounding in them.

        The rounding is subtracted already. ``slopes`` replaces free slopes of the lines.
        """
        return self.concretise(self.linear(start, rows, slopes), self.region)

    def linear(
        self, start: int, rows: Rows, slopes: Mapping[int, list[Tensor]] | None = None,
        penalties: Mapping[int, Tensor] | None = None, seen: dict[int, Tensor] | None = None, *, charged: bool = True,
    ) -> Linear:  # fmt: skip
        """Linear functions of a node as linear functions of the input that are nowhere above them.

        ``penalties`` are linear functions of nodes that are not positive where the bound must hold: they are added.
        ``seen`` receives the coefficients of every node. Not ``charged``: without the rounding.
        """
        a = rows.a.expand(len(self.region.centre), *rows.a.shape[1:])
        pending, constant, error = {start: Rows(a, rows.corner)}, a.new_zeros(a.shape[:2]), a.new_zeros(a.shape[:2])
        for index in range(start, 0, -1):
            current = pending.pop(index, None)
            if current is None:
                continue
            node = self.graph.nodes[index]
            if penalties and index in penalties:
                current = current.add(Rows(penalties[index]), node.shape)
            if seen is not None:
                seen[index] = current.widen(node.shape).a
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
                    errors = self._line_errors(index, node.rule, lines) if charged else errors
                passed, more = node.rule.backward(current, lines, shapes[0])
                found, constant = [passed], constant + more
            error = error + current.charge(errors) if charged else error
            for source, each, shape in zip(node.inputs, found, shapes, strict=True):
                pending[source] = pending[source].add(each, shape) if source in pending else each
        return Linear(pending.get(0), constant, error)

    def concretise(self, found: Linear, region: Region) -> tuple[Tensor, Tensor]:
        """The minimum of linear functions over a region, with the rounding subtracted, and the rounding."""
        value, error = found.constant, ERROR_FACTOR * found.error
        if found.rows is not None:
            rows = found.rows if region.cut is None else found.rows.widen(self.graph.nodes[0].shape)
            parts = (rows.crop(each[:, None]).flatten(2) for each in (region.centre, region.down, region.up))
            value, more = least_value(region, rows.a.flatten(2), found.constant, *parts)
            error = error + ERROR_FACTOR * more
        return (value - error).nan_to_num(nan=-torch.inf), error.nan_to_num(nan=torch.inf)

    def _most_rows(self, start: int, steps: int) -> int:
        """How many linear functions of a node may be propagated at a time."""
        sizes = [prod(node.shape) for node in self.graph.nodes[: start + 1]]
        if steps:
            rules = ((k, node.rule) for k, node in enumerate(self.graph.nodes[: start + 1]))
            sizes += [sizes[k] * rule.points for k, rule in rules if isinstance(rule, NonLinear)]
        return max(1, self.limits.chunk // (max(sizes) * len(self.region.centre)))

    def leads(self, labels: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Lower bounds of the lead of each sample's label over other classes (n, k), and the rounding in them."""
        last = len(self.graph.nodes) - 1
        found: list[tuple[Tensor, Tensor]] = []
        for part in others.split(self._most_rows(last, self.method.steps), dim=1):
            if found:
                self.limits.check()
            rows = self.region.centre.new_zeros(*part.shape, *self.graph.nodes[-1].shape)
            rows.scatter_(2, labels[:, None, None].expand(*part.shape, 1), 1)
            rows.scatter_add_(2, part[..., None], -torch.ones_like(rows[..., :1]))
            found.append(self.output(rows))
        least, errors = zip(*found, strict=True)
        return torch.cat(least, dim=1), torch.cat(errors, dim=1)

    def output(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Lower bounds of linear functions (n, rows, classes) of the logits, and the rounding in them."""
        return self._optimised(len(self.graph.nodes) - 1, Rows(rows), self.method.steps)

    def _optimised(self, start: int, rows: Rows, steps: int) -> tuple[Tensor, Tensor]:
        """The best of ``lower`` over steps of Adam on the slopes; it ends once every bound is positive."""
        with torch.no_grad():
            best, error = self.lower(start, rows)
        slopes: dict[int, list[Tensor]] = {}
        for index, node in enumerate(self.graph.nodes[:start] if steps else ()):
            if isinstance(node.rule, NonLinear):
                first = node.rule.start(*self.bounds[node.inputs[0]], rows.a.shape[1])
                slopes[index] = [each.detach().clone().requires_grad_() for each in first]
        free = [each for group in slopes.values() for each in group]
        if not free:
            return best, error
        adam = torch.optim.Adam(free, lr=self.method.rate)
        decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / steps))
        for _ in range(steps):
            if time.monotonic() > self.limits.deadline or bool((best > 0).all()):
                break
            adam.zero_grad()
            with torch.enable_grad():
                value, slack = self.lower(start, rows, slopes)
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
    """Rows that select single neurons, at most ``most`` at a time: their flat numbers per sample, and the rows.

    Neurons of an image are taken in small tiles, so that backward propagation handles only what they read.
    """
    n, needed = len(needed), needed.any(0)
    numbers = torch.arange(needed.numel(), device=needed.device).view(needed.shape)
    for (top, left), tile in _tiles(needed.shape):
        inside = numbers[tile]
        chosen = needed[tile].flatten().nonzero()[:, 0]
        for part in chosen.split(most):
            a = torch.zeros(1, len(part), inside.numel(), dtype=dtype, device=needed.device)
            a[0, torch.arange(len(part)), part] = 1
            corner = (top, left) if needed.ndim == 3 else None
            yield inside.flatten()[part].expand(n, -1), Rows(a.unflatten(2, inside.shape), corner)


def _own_unit_rows(needed: Tensor, most: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Rows]]:
    """The same with other neurons for each sample, the needed ones first, without tiles."""
    flat = needed.flatten(1)
    count = int(flat.sum(1).max())
    order = flat.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
    for part in order.split(most, dim=1):
        a = torch.zeros(*part.shape, flat.shape[1], dtype=dtype, device=needed.device)
        yield part, Rows(a.scatter_(2, part[..., None], 1).unflatten(2, needed.shape[1:]))


def _tiles(shape: Shape) -> Iterator[tuple[tuple[int, int], tuple[slice, ...]]]:
    if len(shape) != 3:
        yield (0, 0), (slice(None),) * len(shape)
        return
    for top in range(0, shape[1], TILE):
        for left in range(0, shape[2], TILE):
            yield (top, left), (slice(None), slice(top, top + TILE), slice(left, left + TILE))
