r"""Branch and bound over the signs of ReLUs: proves that a region holds no adversarial point.

A domain is the part of the region where some ReLUs have a fixed sign s, by a split or by their bounds. Its bound is
that of CROWN with optimised slopes α and one multiplier β ≥ 0 per fixed sign (Wang et al. 2021): for the label's lead c
over a class,

.. math:: \min_{domain} c(x) \ge \max_{\alpha, \beta} \min_{region} \underline{c}_\alpha(x) - \beta^\top (s \odot z(x))

If it is positive, the domain is done. Otherwise adversarial points can lie only where the linear function on the right
is not positive either. Near the margin that is a thin cap of the ball. Intersecting the region with it tightens the
bounds of all neurons, often until few signs are open (compare Kotha et al. 2023); then the domain is split at the
neuron whose relaxation costs most. All bounds hold in floating point, as those of CROWN do.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marginattack.bounds.graph import Graph
from marginattack.bounds.operations import Rows, rounding
from marginattack.bounds.propagation import CROWN, ERROR_FACTOR, Limits, Linear, Propagation
from marginattack.bounds.regions import Region, least
from marginattack.bounds.relaxations import ReLU

Table = dict[tuple[str, int], Tensor]  # one row per domain; keys are the quantity and the node
ROOT = replace(CROWN, inner_steps=10)
ROOT_STEPS, STEPS, LEAF_STEPS = 40, 10, 200  # of Adam on slopes and multipliers
SLOPE_RATE, MULTIPLIER_RATE = 0.1, 0.2
SLACK = 1.5  # times the rounding at the root
CACHED = 2**18  # numbers per tensor that stay in a processor's cache
WORTHWHILE = 0.9  # times the previous sum of bounds: tightening continues while it improves by more
LOOKED_AT = 8  # domains per round, whose minimiser may lead to an adversarial point


def take(table: Table, rows: Tensor) -> Table:
    """Select domains."""
    return {key: value[rows] for key, value in table.items()}


def join(tables: list[Table]) -> Table:
    """Concatenate the domains of several tables."""
    return {key: torch.cat([each[key] for each in tables]) for key in tables[0]}


def _signs(low: Tensor, high: Tensor) -> Tensor:
    """1 if a neuron is not negative, −1 if it is not positive, 0 if its sign is open."""
    return (low >= 0).to(low) - (high <= 0).to(low)


@dataclass(eq=False)
class Branching:
    """The open domains of one sample: they hold all points of its region that may be adversarial."""

    graph: Graph  # in the precision of the region
    region: Region  # of one sample
    leads: Tensor  # (goals, classes): the label's lead over each other class, as linear functions of the logits
    limits: Limits
    batch: int = 64  # domains that are split at a time
    domains: int = 0  # how many have been bounded

    def __post_init__(self) -> None:
        chunk = CACHED if self.region.centre.device.type == "cpu" else self.limits.chunk
        self.limits = replace(self.limits, chunk=min(self.limits.chunk, chunk))
        self.relus = {i: node.inputs[0] for i, node in enumerate(self.graph.nodes) if isinstance(node.rule, ReLU)}
        self.inputs = sorted(set(self.relus.values()))
        self.aside: list[Table] = []  # domains without an open sign that could not be decided
        self.stuck: list[Table] = []  # those of the latest step
        self.points = self.region.centre[:0]  # where the functions of the worst of the latest domains are least
        self.work = self._bound(self._root(), ROOT_STEPS)
        before = -torch.inf
        while (now := float(self.work["bound", 0].sum())) > WORTHWHILE * before and now < 0:
            before, self.work = now, self._bound(self.work, STEPS)

    def open_goals(self) -> Tensor:
        """Rows of ``leads`` that may be negative somewhere in the region."""
        goals: Tensor = torch.cat([each["goal", 0] for each in (self.work, *self.aside)]).unique()
        return goals

    def shrink(self, region: Region) -> None:
        """Continue in a smaller region, in which domains that were set aside may be decided."""
        self.region = region
        self.work, self.aside = join([self.work, *self.aside]), []

    def step(self) -> None:
        """Split the domains with the lowest bounds; those without an open sign are bounded longer, then set aside.

        Raises:
            OutOfTime: The deadline has passed; open domains stay open.
        """
        order = self.work["bound", 0].argsort()
        now, later = take(self.work, order[: self.batch]), take(self.work, order[self.batch :])
        leaf = now["node", 0] < 0
        parts, self.stuck = [later], []
        if not bool(leaf.all()):
            parts.append(self._bound(self._split(take(now, ~leaf)), STEPS))
        if bool(leaf.any()):
            tried = self._bound(take(now, leaf), LEAF_STEPS)
            still = tried["node", 0] < 0
            parts.append(take(tried, ~still))
            self.stuck = [take(tried, still)]
        self.work, self.aside = join(parts), self.aside + self.stuck

    def _root(self) -> Table:
        """One domain per goal, without a fixed sign."""
        n = len(self.leads)
        with torch.no_grad():
            whole = Propagation(self.graph, self.region, ROOT, self.limits)
            seen: dict[int, Tensor] = {}
            error = whole.linear(len(self.graph.nodes) - 1, Rows(self.leads[None]), seen=seen).error[0]
        self.slack = SLACK * error  # per goal: bounds above this are positive after rounding, too
        self.scale = {z: float(seen[z].abs().mean()) if z else 1.0 for z in self.inputs}  # of multipliers
        table: Table = {("goal", 0): torch.arange(n, device=self.leads.device)}
        for z in self.inputs:
            low, high = whole.bounds[z]
            table["low", z], table["high", z] = (each.expand(n, *each.shape[1:]) for each in (low, high))
            table["multiplier", z] = torch.zeros_like(low)[:, None].expand(n, 1, *low.shape[1:])
        for index, z in self.relus.items():
            rule = self.graph.nodes[index].rule
            assert isinstance(rule, ReLU)
            table["slope", index] = rule.start(*whole.bounds[z], 1)[0].expand(n, 1, *whole.bounds[z][0].shape[1:])
        return table

    def _split(self, table: Table) -> Table:
        """Both halves of each domain, at its chosen neuron."""
        halves = []
        for side in ("low", "high"):
            half = dict(table)
            for z in self.inputs:
                rows = (table["node", 0] == z).nonzero()[:, 0]
                half[side, z] = half[side, z].clone()
                half[side, z].view(len(half[side, z]), -1)[rows, table["place", 0][rows]] = 0.0
            halves.append(half)
        return join(halves)

    def _bound(self, table: Table, steps: int) -> Table:
        """Bound these domains; return the open ones, with the neuron at which to split each."""
        n = len(table["goal", 0])
        self.domains += n
        region = self.region.repeat(n)
        cut = self.region.repeat(n, (table["cut", 0], table["cut", 1])) if ("cut", 0) in table else region
        given = {z: (table["low", z], table["high", z]) for z in self.inputs}
        with torch.no_grad():
            propagation = Propagation(self.graph, cut, CROWN, self.limits, given)
        table, function, seen = self._optimise(propagation, region, table, steps)
        value = propagation.concretise(function, region)[0][:, 0]
        table["bound", 0] = torch.where(propagation.empty, torch.inf, value)
        table["cut", 0], table["cut", 1] = self._cut(function)
        for z in self.inputs:
            table["low", z], table["high", z] = propagation.bounds[z]
        table["node", 0], table["place", 0] = self._choose(propagation, seen)
        left = take(table, (table["bound", 0] <= 0).nonzero()[:, 0])
        self.points = self._least_points(take(left, left["bound", 0].argsort()[:LOOKED_AT]))
        return left

    def _optimise(
        self, propagation: Propagation, region: Region, table: Table, steps: int
    ) -> tuple[Table, Linear, dict[int, Tensor]]:
        """The table with better slopes and multipliers, the linear function they give, and its coefficients."""
        last, rows = len(self.graph.nodes) - 1, Rows(self.leads[table["goal", 0]][:, None])
        free = {key: table[key].clone().requires_grad_() for key in table if key[0] in ("slope", "multiplier")}
        rates = [(key, SLOPE_RATE if key[0] == "slope" else MULTIPLIER_RATE) for key in free]
        adam = torch.optim.Adam([{"params": [free[key]], "lr": rate} for key, rate in rates])
        decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / steps))
        fixed = {z: self.scale[z] * _signs(*propagation.bounds[z])[:, None] for z in self.inputs}

        def function(seen: dict[int, Tensor] | None = None) -> Linear:
            slopes = {i: [free["slope", i]] if i in self.relus else [] for i in range(last + 1)}
            penalties = {z: -fixed[z] * free["multiplier", z] for z in self.inputs}
            return propagation.linear(last, rows, slopes, penalties, seen, charged=seen is not None)

        for _ in range(steps):
            value, _ = propagation.concretise(function(), region)
            if bool((value[:, 0] > self.slack[table["goal", 0]]).all()):
                break
            adam.zero_grad()
            torch.where(torch.isfinite(value), -value, 0).sum().backward()
            adam.step()
            decay.step()
            with torch.no_grad():
                for (kind, _), each in free.items():
                    each.clamp_(0, 1 if kind == "slope" else None)
        seen: dict[int, Tensor] = {}
        with torch.no_grad():
            found = function(seen)
        return table | {key: each.detach() for key, each in free.items()}, found, seen

    def _cut(self, function: Linear) -> tuple[Tensor, Tensor]:
        """G and k such that only points with gᵀx + k ≤ 0 can be adversarial."""
        constant = function.constant
        error = function.error + rounding(64, constant.dtype) * constant.abs()
        return self._coefficients(function)[:, 0], (constant - ERROR_FACTOR * error)[:, 0]

    def _coefficients(self, function: Linear) -> Tensor:
        """(n, rows, d)"""
        assert function.rows is not None
        return function.rows.widen(self.graph.nodes[0].shape).a.flatten(2)

    def _choose(self, propagation: Propagation, seen: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """For each domain the neuron whose relaxation costs most: its node, −1 if no sign is open, and its place."""
        scores, places = [], []
        for index, z in self.relus.items():
            low, high = propagation.bounds[z]
            open_ = (low < 0) & (high > 0)
            gap = torch.where(open_, -low * high / torch.where(open_, high - low, 1), 0)
            cost = torch.where(open_, (gap * seen[index][:, 0].abs()).clamp(min=torch.finfo(gap.dtype).tiny), 0)
            score, place = cost.flatten(1).max(1)
            scores.append(score)
            places.append(place)
        score, best = torch.stack(scores).max(0)
        node = torch.tensor(list(self.relus.values()), device=score.device)[best]
        return torch.where(score > 0, node, -1), torch.stack(places).gather(0, best[None])[0]

    def leaves(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """A, b and the goal of the latest domains set aside: the polytopes A x ≤ b hold their adversarial points."""
        found = []
        for table, row in ((each, row) for each in self.stuck for row in range(len(each["goal", 0]))):
            one = take(table, torch.tensor([row], device=self.leads.device))
            given = {z: (one["low", z], one["high", z]) for z in self.inputs}
            with torch.no_grad():
                whole = Propagation(self.graph, self.region, CROWN, self.limits, given)
                rows = [(len(self.graph.nodes) - 1, self.leads[one["goal", 0]][None])]
                for z in self.inputs:
                    side = 1 - 2 * (one["low", z] >= 0).to(self.leads).flatten()
                    rows.append((z, torch.diag(side).view(1, len(side), *self.graph.nodes[z].shape)))
                parts = [whole.linear(node, Rows(each)) for node, each in rows]
            a = torch.cat([self._coefficients(part)[0] for part in parts])
            found.append((a, -torch.cat([part.constant[0] for part in parts]), one["goal", 0][0]))
        return found

    def _least_points(self, table: Table) -> Tensor:
        """The minimiser of the linear function of each domain over the region."""
        region = self.region.repeat(len(table["goal", 0]))
        flat = [each.flatten(1)[:, None] for each in (region.centre, region.down, region.up)]
        a = table["cut", 0][:, None].clone().requires_grad_()
        step = torch.autograd.grad(least(region, a, *flat[1:]).sum(), a)[0]  # of a minimum: where it is attained
        return (flat[0] + step).view_as(region.centre)
