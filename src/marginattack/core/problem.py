r"""Problem: one batch of inputs, the constraint that each must cross, and everything that has been seen of it.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad c(x) \le 0, \; x \in [lo, hi]^d

Untargeted, :math:`c(x) = l_t - \max_{i \ne t} l_i - \varepsilon`; towards a class a,
:math:`c(x) = \max_{i \ne a} l_i - l_a - \varepsilon` (paper Eq. 2).

Every look at the model goes through here. A look counts its passes, keeps the nearest adversarial point, leaves out
the samples that are finished, and never exceeds the budget; so no attack does any of that.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from marginattack.core import losses
from marginattack.core.classifier import Classifier
from marginattack.core.draws import uniform
from marginattack.core.goals import away, towards
from marginattack.core.history import Anytime
from marginattack.core.losses import Belief
from marginattack.core.norms import Norm
from marginattack.core.queries import Rival, joined, look
from marginattack.core.types import Labels, Mask, Points, Scalars
from marginattack.errors import InputError
from marginattack.execution import graphs
from marginattack.execution.graphs import State, Step, onto, padded, plainly

ROWWISE = ("x0", "aim", "best", "distance")  # tensors of a problem with a row a sample, besides the anytime record

FURTHER = (1.0, 1.01, 1.1)  # where a point that a coarse look found is confirmed, as multiples of its distance
APART = 1 << 20  # draws, more than anybody makes: after it those of all samples are new
UNBOUNDED = 2**62  # passes a sample where no budget is given


class Finished(Exception):
    """No sample is left that may be looked at; ``Problem.solve`` ends the attack here."""


# (rows of the whole problem, the points looked at, the constraint's value there, the move that led there)
Watch: TypeAlias = Callable[[Tensor, Points, Scalars, str], None]


class Problem:
    """A batch for an attack: flat points ``x0``, the box from ``lo`` to ``hi``, a ``norm``; and what was found.

    ``best`` and ``distance`` hold the nearest adversarial point ever looked at and how far it is (infinity: none);
    ``forwards`` and ``backwards`` count passes a sample; ``budget`` bounds their sum; ``anytime`` keeps what was known
    when. ``ids`` name the samples, so that random draws belong to them and not to their place in the batch. ``watch``
    is called after every look, for pictures.
    """

    def __init__(
        self,
        classifier: Classifier,
        images: Tensor,
        labels: Labels,
        norm: Norm,
        *,
        targets: Labels | None = None,
        budget: int | None = None,
        seed: int = 0,
        ids: Sequence[int] | Tensor | None = None,
    ) -> None:
        n = len(images)
        device = classifier.device
        self.classifier, self.norm, self.seed = classifier, norm, seed
        self.shape = images.shape[1:]
        self.x0: Points = images.to(device).flatten(1)
        self.lo, self.hi = (wall.reshape(1, -1).to(device) for wall in classifier.box(images))
        self.targeted = targets is not None
        self.aim: Tensor = away(labels.to(device)) if targets is None else towards(targets.to(device))
        self._ids = torch.arange(n) if ids is None else torch.as_tensor(ids)
        self._copy = torch.zeros(n, dtype=torch.int64)  # which copy of its sample a row is
        self.draws = 0
        self._live = torch.arange(n)
        self._left = torch.full((n,), UNBOUNDED if budget is None else budget)
        self._rows = (self._live, self._live.to(device))  # the live rows last looked at, here and on the device
        self._origin: Tensor | None = None  # the row in the whole problem that a row of a part is about; None: the same
        self.anytime = Anytime(n, self.x0)
        self._single = True  # no row of the whole problem is more than one here
        self._paid = False  # the looks to come are paid for
        self._stands_in = False  # what is found is kept in place
        self.watch: Watch | None = None
        self.moved = ""  # by which move the next point to be looked at came about, for those who watch
        self.best: Points = self.x0.clone()
        self.distance: Scalars = torch.full_like(self.x0[:, :1], torch.inf)
        self.forwards = torch.zeros(n, dtype=torch.int64)
        self.backwards = torch.zeros(n, dtype=torch.int64)

    def solve(self, attack: Callable[["Problem"], None]) -> None:
        """Run the attack to its end, or until no sample may be looked at any more."""
        try:
            attack(self)
        except Finished:
            pass

    def value(self, x: Points, *, offset: float = 0.0, of: Belief = losses.MARGIN) -> Scalars:
        """Value of the constraint at x, from one forward. Zero for finished samples."""
        ((value, _),), _ = self._look(x, [of], offset, gradients=False)
        return value

    def c(self, x: Points, *, offset: float | Tensor = 0.0, of: Belief = losses.MARGIN) -> tuple[Scalars, Points]:
        """Value and gradient of the constraint at x, from one forward and one backward. Zero for finished samples.

        c is lifted by what rounding can hide, so that it is negative exactly where x counts as adversarial.
        """
        (look,), _ = self._look(x, [of], offset)
        return look

    def looks(self, x: Points, of: Sequence[Belief], *, offset: float = 0.0) -> list[tuple[Scalars, Points]]:
        """Value and gradient of several beliefs at x, from one forward and a backward each."""
        return self._look(x, of, offset)[0]

    @property
    def classes(self) -> Labels:
        """The class of each sample that it is to leave, or to reach."""
        return self.aim[:, 0]

    def rivals(self, x: Points, *, most: int, offset: float = 0.0) -> list["Rival"]:
        """c_i(x) and ∇c_i(x) towards each of the highest other classes: one forward, one backward a class.

        A targeted problem has a single constraint, and that is returned.
        """
        if self.targeted:
            return [Rival(self.classes, *self.c(x, offset=offset))]
        number = min(most, self.classifier.classes - 1)
        looks, logits = self._look(x, [losses.Rival(rank, number) for rank in range(number)], offset)
        labels = losses.others(logits, self.classes).topk(len(looks), dim=1).indices
        return [Rival(label, c, g) for label, (c, g) in zip(labels.T, looks, strict=True)]

    def ranking(self, x: Points, *, most: int) -> list[Labels]:
        """The classes to attack, the most likely first: the highest others, or the target. From one forward."""
        _, logits = self._look(x, [losses.MARGIN], 0.0, gradients=False)
        if self.targeted:
            return [self.classes]
        highest = losses.others(logits, self.classes).topk(min(most, self.classifier.classes - 1), dim=1)
        return list(highest.indices.T)

    @property
    def left(self) -> int:
        """How many passes a sample may still spend, at most."""
        return max(self._left[self._live].tolist(), default=0)

    @property
    def bounded(self) -> bool:
        """Whether there is a budget; parts of an unbounded problem have none either."""
        return self.left < UNBOUNDED >> 20

    def uniform(self) -> Points:
        """Numbers in [0, 1): new ones at each call, each sample's own."""
        self.draws += 1
        draw = self.draws + (self._copy << 32)
        return uniform(self._ids, self.x0.shape[1], seed=self.seed, draw=draw, like=self.x0)

    def clamp(self, x: Points) -> Points:
        """X inside the box."""
        return torch.clamp(x, self.lo, self.hi)

    def need_walls(self, who: str) -> None:
        """Refuse a box without walls, for attacks that go from wall to wall."""
        if not bool(torch.isfinite(self.hi - self.lo).all()):
            raise InputError(f"{who} needs a box with walls on every side: state finite bounds=(lo, hi)")

    def drop(self, finished: Mask) -> None:
        """Leave these samples out of every further look, or until the ``only`` around it ends."""
        self._live = self._live[~finished.cpu()[self._live]]

    @contextmanager
    def only(self, wanted: Mask) -> Iterator[None]:
        """Leave the other samples out for a while. Where none can go on, the block ends early, not the attack."""
        before = self._live
        self.drop(~wanted)
        try:
            yield
        except Finished:
            pass
        finally:
            self._live = before

    @contextmanager
    def quickly(self) -> Iterator[None]:
        """Look in the precision of the classifier's search for a while.

        What is found so counts when a look in full precision confirms it; else a little further out along the same ray.
        """
        before = self.best, self.distance
        try:
            with self.classifier.quickly():
                yield
        finally:
            if self.classifier.search != "float32":
                self._confirm(*before)

    def _confirm(self, best: Points, distance: Scalars) -> None:
        """Look again, in full, at what was found since these were the best; what cannot be paid for is believed."""
        x, size = self.best, self.distance
        new, live = (size < distance)[:, 0], self._live
        self.best, self.distance = best, distance
        able = (self._left > 0).to(new.device)
        self._live = torch.arange(len(x))
        for further in FURTHER:
            with self.only(new & able & (self.distance >= distance)[:, 0]):
                self.value(self.clamp(self.x0 + further * (x - self.x0)))
        self._live = live
        believed = (new & ~able)[:, None]
        self.best, self.distance = torch.where(believed, x, self.best), torch.where(believed, size, self.distance)

    @contextmanager
    def take(
        self, rows: Tensor | None = None, *, targets: Labels | None = None, found: bool = False
    ) -> Iterator["Problem"]:
        """Some samples (else all) as a problem of their own, with nothing found; with targets, as a targeted one.

        With ``found`` it knows what was found before.

        A sample named m times is m rows, which share what is left of its budget and draw different numbers. What the
        part finds and spends is the whole's when the block ends.
        """
        rows = torch.arange(len(self.x0)) if rows is None else rows
        rows = rows.cpu()
        part = copy(self)
        there = rows.to(self.x0.device)
        part.x0, part.best = self.x0[there], (self.best if found else self.x0)[there]
        part.distance = self.distance[there] if found else torch.full_like(part.x0[:, :1], torch.inf)
        part._ids, part._origin = self._ids[rows], there if self._origin is None else self._origin[there]
        part.aim, part.targeted = (self.aim[there], self.targeted) if targets is None else (towards(targets), True)
        part._copy = (self._copy[rows] << 16) + _occurrence(rows)
        times = torch.bincount(rows)
        part._single = self._single and bool((times <= 1).all())
        part._left = self._left[rows] // times[rows]
        part.forwards, part.backwards = torch.zeros_like(rows), torch.zeros_like(rows)
        part._live = torch.isin(rows, self._live).nonzero()[:, 0]
        try:
            yield part
        finally:
            self.draws = part.draws
            self.forwards.index_add_(0, rows, part.forwards)
            self.backwards.index_add_(0, rows, part.backwards)
            self._left.index_add_(0, rows, -(part.forwards + part.backwards))
            order = part.distance[:, 0].argsort(stable=True).cpu()
            nearest = order[_occurrence(rows[order]) == 0]
            nearest = nearest[(part.distance[nearest, 0] < self.distance[rows[nearest], 0]).cpu()]
            self.best = self.best.index_copy(0, rows[nearest].to(there.device), part.best[nearest])
            self.distance = self.distance.index_copy(0, rows[nearest].to(there.device), part.distance[nearest])

    def each(self, attack: Callable[["Problem"], None]) -> None:
        """Run an attack that handles one sample at a time on every sample in turn."""
        draws = self.draws
        for row in self._live.tolist():
            self.draws = draws  # the draws of one sample do not depend on those of another
            with self.take(torch.tensor([row])) as one:
                one.solve(attack)
        self.draws = draws + APART

    @property
    def whole(self) -> bool:
        """Whether all samples may be looked at side by side, as one graph."""
        fits = 0 < len(self._live) == len(self.x0) <= self.classifier.chunk
        return fits and self._single and self.watch is None and graphs.possible(self.x0)

    def left_of(self, rows: Mask) -> list[int]:
        """How many passes these samples may still spend, those that are live."""
        left: list[int] = self._left[self._live[rows.cpu()[self._live]]].tolist()
        return left

    def walk(self, step: Step, plan: Sequence[Sequence[float]], *state: Tensor, paying: Mask | None = None) -> State:
        """A step for each row of the plan, from this state to the last; on a GPU as a graph, where that is possible.

        ``paying`` says who is charged, and can pay for all of it: the others wait. Else everybody goes on to the end
        of the plan or of his budget.
        """
        table = onto(torch.tensor(plan, dtype=self.x0.dtype), self.x0)
        rows = torch.ones(len(self.x0), dtype=torch.bool) if paying is None else paying.cpu()
        if not self.whole or (paying is None and not step.lasting):  # one with a memory may leave samples out
            return plainly(self, step, table, state)
        ahead = min(len(table), min(self.left_of(rows), default=0) // (2 * step.looks))
        if ahead:
            self.forwards[rows] += step.looks * ahead
            self.backwards[rows] += step.looks * ahead
            self._left[rows] -= 2 * step.looks * ahead
            self._paid = True
            try:
                walk = self.classifier.graphs.walk if step.lasting else plainly
                state = walk(self, step, table[:ahead], state)
            finally:
                self._paid = False
        return plainly(self, step, table[ahead:], state)

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """What problems have in common that can share a graph, besides their size."""
        c = self.classifier
        return self.shape, self.x0.dtype, self.lo.shape, self.norm, c.company, c.precision

    def found(self) -> State:
        """What a look replaces."""
        return self.best, self.distance, self.anytime.best

    def stand_in(self, rows: int) -> "Problem":
        """A problem of so many rows, all paid for, with tensors of its own that ``load`` fills."""
        inner = copy(self)
        for name in ROWWISE:
            setattr(inner, name, padded(getattr(self, name), rows))
        inner.anytime = self.anytime.of(self._origin).padded(rows)
        inner._origin = None
        inner.lo, inner.hi = self.lo.clone(), self.hi.clone()
        inner._paid = inner._stands_in = True
        return inner

    def load(self, problem: "Problem") -> None:
        """Take over everything that this problem stands for now; rows beyond it keep what they had."""
        for name in ROWWISE:
            getattr(self, name)[: len(problem.x0)].copy_(getattr(problem, name))
        self.anytime.load(problem.anytime.of(problem._origin))
        self.lo.copy_(problem.lo)
        self.hi.copy_(problem.hi)

    def unload(self, inner: "Problem") -> None:
        """What was found by the problem that stood in."""
        n = len(self.x0)
        self.best, self.distance = inner.best[:n].clone(), inner.distance[:n].clone()
        self.anytime.unload(inner.anytime, self._origin)

    def _pay(self, forwards: int, backwards: int) -> slice | Tensor:
        """Charge a look to each sample that can afford it: their rows."""
        if self._paid:
            return slice(None)
        live = self._live[self._left[self._live] >= forwards + backwards]
        if len(live) == 0:
            raise Finished
        self.forwards[live] += forwards
        self.backwards[live] += backwards
        self._left[live] -= forwards + backwards
        if len(live) == len(self.x0):
            return slice(None)
        if not torch.equal(live, self._rows[0]):  # a copy to the device waits for it, so it is kept
            self._rows = (live, live.to(self.x0.device))
        return self._rows[1]

    def _look(
        self, x: Points, of: Sequence[Belief], offset: float | Tensor, *, gradients: bool = True
    ) -> tuple[list[tuple[Scalars, Points]], Tensor]:
        """One look at the live samples, chunk by chunk: values and gradients, and the logits. It counts and judges."""
        passes = 1 + (len(of) if gradients else 0)
        rows = self._pay(1, passes - 1)
        looking = partial(look, self.classifier, self.shape, of, gradients)
        if not self._paid:
            kind = (*self.kind, gradients, *of)
            looking = partial(self.classifier.graphs.look, looking, kind, self.classifier.full)
        chunk = len(x) if self._paid else self.classifier.chunk  # what is paid for fits; a graph has some rows more
        chunks = zip(*(part[rows].split(chunk) for part in (x.detach(), self.aim)), strict=True)
        seen = joined([looking(points, aim) for points, aim in chunks])
        if self._stands_in and (kernels := self.norm.kernels(x)) is not None:
            kernels.judged(
                x, self.x0, self.lo, self.hi, seen.crossed, self.best, self.distance, self.anytime, self.aim, passes
            )
        else:
            size = self._judge(x, self._full(seen.crossed, rows))
            self.anytime.see(self._of_whole(rows), passes * self.aim[rows, 1].abs(), size[rows])
        if self.watch is not None:
            whole = torch.arange(len(x), device=x.device) if self._origin is None else self._origin
            self.watch(whole[rows], x[rows].detach(), seen.values[0][:, None], self.moved)
        values = seen.values if isinstance(offset, float) and offset == 0 else seen.values - offset
        pairs = zip(values, seen.slopes, strict=True)
        found = [(self._full(value[:, None], rows), self._full(slope, rows)) for value, slope in pairs]
        return found, self._full(seen.logits, rows)

    def _judge(self, x: Points, crossed: Mask) -> Scalars:
        """Keep what is adversarial, inside the box and nearer than the best so far; the size of each such point."""
        x = x.detach()
        inside = ((x >= self.lo) & (x <= self.hi)).all(1)
        size = torch.where((crossed & inside)[:, None], self.norm.size(x - self.x0), torch.inf)
        nearer = size < self.distance
        self.best = torch.where(nearer, x, self.best)
        self.distance = torch.where(nearer, size, self.distance)
        return size

    def _of_whole(self, rows: slice | Tensor) -> Tensor | None:
        """The rows of the whole problem that these are; None for all of them in order."""
        if self._origin is None:
            return None if isinstance(rows, slice) else rows
        return self._origin[rows]

    def _full(self, values: Tensor, rows: slice | Tensor) -> Tensor:
        """Values of the rows looked at, and zeros for the others."""
        if isinstance(rows, slice):
            return values
        return values.new_zeros(len(self.x0), *values.shape[1:]).index_copy(0, rows, values)


def _occurrence(rows: Tensor) -> Tensor:
    """For each entry, how many equal ones stand before it."""
    order = rows.argsort(stable=True)
    ordered = rows[order]
    return torch.empty_like(rows).index_copy(0, order, torch.arange(len(rows)) - torch.searchsorted(ordered, ordered))
