r"""Problem: a batch of inputs, the constraint that each must cross, and queries to the model.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad c(x) \le 0, \; x \in [lo, hi]^d

Untargeted, :math:`c(x) = l_t - \max_{i \ne t} l_i - \varepsilon`; targeted at class a,
:math:`c(x) = \max_{i \ne a} l_i - l_a - \varepsilon` (paper Eq. 2).

Every query charges the budget, offers its points to the incumbent and leaves out samples that are finished; so no
attack does any of that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import ClassVar, NamedTuple

import torch
from torch import Size, Tensor

from marginattack.core import losses
from marginattack.core.box import Box
from marginattack.core.budget import Budget, BudgetExhausted
from marginattack.core.calibration import Tolerance
from marginattack.core.draws import Draws
from marginattack.core.goals import reach
from marginattack.core.incumbent import Incumbent
from marginattack.core.losses import Loss
from marginattack.core.norms import Norm
from marginattack.core.observation import Observation as Observation
from marginattack.core.observation import Observer as Observer
from marginattack.core.queries import Answer, Query, evaluate, input_gradient, join_answers
from marginattack.core.tensors import scatter_rows, to_device_of
from marginattack.core.types import Goals, Labels, Logits, Mask, Points, Scalars, State

FLIP_SHARE = 0.3  # of the units of a layer
STEPS_UNTIL_CHECK = 8  # of a plan, after which samples that are finished leave the batch
LEAST_LOW_PRECISION = 60  # passes left; with fewer, what a confirmation costs is a large share of them
CONFIRM_AT = (1.0, 1.003, 1.02, 1.1)  # multiples of the distance at which a point of a low-precision search is tried


class ClassConstraint(NamedTuple):
    """Another class, and the constraint to reach it: c and ∇c."""

    label: Labels
    c: Scalars
    g: Points


class Step(ABC):
    """One step of an attack: a frozen value, so that equal steps share a CUDA graph.

    It maps the numbers that the plan holds for this step, (1, k) or one row per sample, and the state to the next
    state. It queries the problem ``queries`` times, with ``backwards`` gradients each, and has no other side effect. No
    tensor of the new state may be a tensor of the old one in another position.
    """

    queries: ClassVar[int]
    backwards: ClassVar[int] = 1

    @property
    def passes(self) -> int:
        """What it costs per sample."""
        return self.queries * (1 + self.backwards)

    @abstractmethod
    def __call__(self, problem: "Problem", numbers: Tensor, *state: Tensor) -> State:
        """The next state."""


def run_eager(problem: "Problem", step: Step, table: Tensor, state: State) -> State:
    """A step for each row of the table, one after the other: the specification of every faster way."""
    for row in range(len(table)):
        state = step(problem, table[row : row + 1], *state)
    return state


@dataclass(frozen=True, eq=False)
class Evaluator(ABC):
    """A model as a problem sees it: how many classes it has, and the answers to queries, at most a batch at a time."""

    classes: int
    tolerance: Tolerance
    batch_size: int

    @abstractmethod
    def logits(self, images: Tensor) -> Logits:
        """The logits of images on the model's device, differentiable."""

    def query(self, query: Query, points: Points, goals: Goals) -> Answer:
        """Answer in batches of at most ``batch_size``."""
        batches = zip(points.split(self.batch_size), goals.split(self.batch_size), strict=True)
        return join_answers([self.query_batch(query, *batch) for batch in batches])

    def query_batch(self, query: Query, points: Points, goals: Goals) -> Answer:
        """Answer for one batch."""
        return evaluate(self.logits, self.tolerance, query, points, goals)

    def hidden_gradient(self, images: Tensor, layer: int, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient of weigh(h)ᵀh by the images, h the outputs of a hidden layer counted from the last one.

        Here h are the logits.
        """
        images = images.detach().requires_grad_()
        with torch.enable_grad():
            h = self.logits(images)
        return input_gradient(h, images, keep=False, weight=weigh(h.detach()))

    def run(self, problem: "Problem", step: Step, table: Tensor, state: State, charged: Mask | None) -> State:
        """A step for each row of the table; ``charged`` is for evaluators that can interleave."""
        return run_eager(problem, step, table, state)

    def can_interleave(self, problem: "Problem") -> bool:
        """Whether samples in different phases can share each query."""
        return False

    @property
    def for_search(self) -> "Evaluator":
        """The evaluator in the precision of the search: itself, unless a lower precision was asked for."""
        return self


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch for an attack: flat points ``x0``, their ``box``, a ``norm``, a goal per sample, and shared state.

    Views of a problem (``masked``, ``retarget``, ``for_search``) share budget, incumbent and draws with it;
    a ``subproblem`` has its own and hands back what it found and did not spend. Attacks receive a problem and query it:

    Args:
        evaluator: Answers queries.
        shape: The shape of one input.
        x0: The inputs, flat.
        box: Bounds of the inputs.
        norm: The norm that is minimised.
        goals: Per sample, the class to leave or to reach.
        targeted: Whether the goals are classes to reach.
        budget: Passes left and spent per sample, and who is active.
        incumbent: The nearest adversarial points so far: ``incumbent.points``, ``incumbent.distance``.
        draws: Random numbers: ``draws.uniform()``.
        observer: Receives every query.
        enough: A sample is finished once its incumbent is at this distance or nearer; None: no distance is enough.
        searched: Set once a view has queried in a lower precision.

    Example:
        >>> import marginattack as ma
        >>> from marginattack.execution.session import open_session
        >>> from marginattack.sources.networks import zoo
        >>> from marginattack.sources.data import samples
        >>> images, labels = samples("mnist", 2)
        >>> with open_session(ma.Classifier(zoo("mnist-cnn"))) as session:
        ...     problem = session.problem(session.validate(images, labels), ma.L2, budget=10)
        ...     c, g = problem.value_and_gradient(problem.x0)
        >>> c.shape, g.shape, problem.budget.remaining
        (torch.Size([2, 1]), torch.Size([2, 784]), 8)
    """

    evaluator: Evaluator
    shape: Size
    x0: Points
    box: Box
    norm: Norm
    goals: Goals
    targeted: bool
    budget: Budget
    incumbent: Incumbent
    draws: Draws
    observer: Observer = field(default_factory=Observer)
    enough: float | None = None
    searched: Event = field(default_factory=Event)

    def solve(self, attack: Callable[["Problem"], None]) -> None:
        """Run the attack until it returns or no sample can be queried any more."""
        with suppress(BudgetExhausted):
            attack(self)

    def value(self, x: Points, *, offset: float = 0.0, loss: Loss = losses.MARGIN) -> Scalars:
        """c(x) from one forward; zero for finished samples."""
        ((value, _),), _ = self._query(x, (loss,), offset, gradients=False)
        return value

    def value_and_gradient(
        self, x: Points, *, offset: float | Tensor = 0.0, loss: Loss = losses.MARGIN
    ) -> tuple[Scalars, Points]:
        """c(x) and ∇c(x) from one forward and one backward; zero for finished samples.

        c is raised by the decision tolerance, so that it is negative exactly where x counts as adversarial.
        """
        (pair,), _ = self._query(x, (loss,), offset)
        return pair

    def values_and_gradients(self, x: Points, of: Sequence[Loss]) -> list[tuple[Scalars, Points]]:
        """Value and gradient of several losses from one forward and a backward each."""
        return self._query(x, tuple(of), 0.0)[0]

    def class_constraints(self, x: Points, *, most: int, offset: float = 0.0) -> list[ClassConstraint]:
        """c_i(x) and ∇c_i(x) towards each of the ``most`` highest other classes: one forward, a backward per class.

        A targeted problem has a single constraint.
        """
        if self.targeted:
            return [ClassConstraint(self.labels, *self.value_and_gradient(x, offset=offset))]
        number = min(most, self.evaluator.classes - 1)
        ranks = tuple(losses.RankedMargin(rank, number) for rank in range(number))
        pairs, logits = self._query(x, ranks, offset)
        labels = losses.others(logits, self.labels).topk(len(pairs), dim=1).indices
        return [ClassConstraint(label, c, g) for label, (c, g) in zip(labels.T, pairs, strict=True)]

    def highest_classes(self, x: Points, *, most: int) -> list[Labels]:
        """The highest other classes at x, the most likely first, or the target; from one forward."""
        _, logits = self._query(x, (losses.MARGIN,), 0.0, gradients=False)
        if self.targeted:
            return [self.labels]
        highest = losses.others(logits, self.labels).topk(min(most, self.evaluator.classes - 1), dim=1)
        return list(highest.indices.T)

    def flip_direction(self, draws: Draws, layer: int) -> Points:
        """A direction from x₀ in which random units of a hidden layer change their signs; one forward, one backward.

        The layer is counted from the last one. Finished samples have the direction zero.
        """
        self._leave_out_finished()
        rows = self.budget.charge(1, 1)
        direction = torch.zeros_like(self.x0)
        for part in self.budget.active.split(self.evaluator.batch_size):
            chosen, here = draws.select(part), to_device_of(part, self.x0)
            images = self.x0[here].unflatten(1, self.shape)
            gradient = self.evaluator.hidden_gradient(images, layer, partial(_flip_weights, chosen))
            direction[here] = gradient.flatten(1)
        draws.count += 2
        nothing = torch.zeros(len(self.x0), dtype=torch.bool, device=self.x0.device)
        self.incumbent.offer(self.x0, nothing, self.goals, 2, rows)
        return direction

    @property
    def labels(self) -> Labels:
        """The class that each sample is to leave, or to reach."""
        return self.goals[:, 0]

    @contextmanager
    def masked(self, rows: Mask) -> Iterator["Problem"]:
        """A view with only these samples active. The block ends early, without error, once none can be queried."""
        self._leave_out_finished()
        with suppress(BudgetExhausted):
            yield replace(self, budget=self.budget.masked(rows))
        self._leave_out_finished()

    @contextmanager
    def subproblem(
        self, rows: Tensor | None = None, *, targets: Labels | None = None, known: bool = False,
        draws: Draws | None = None,
    ) -> Iterator["Problem"]:  # fmt: skip
        """Some samples (None: all) as a problem of their own, with nothing found unless ``known``.

        Its share of the budget is reserved: the parent cannot spend it inside the block. A sample that is named m
        times gets m rows with equal shares and different draws. With ``targets`` the problem is targeted. What it
        finds and spends is the parent's when the block ends; so are its draws, unless it was given its own.
        """
        self._leave_out_finished()
        rows = torch.arange(len(self.x0)) if rows is None else rows.cpu()
        here = rows.to(self.x0.device)
        incumbent = self.incumbent.select(rows, known=known)
        with self.budget.reserve(rows) as budget:
            part = replace(
                self, x0=incumbent.x0, box=incumbent.box,
                goals=self.goals[here] if targets is None else reach(targets),
                targeted=self.targeted or targets is not None, budget=budget, incumbent=incumbent,
                draws=(draws or self.draws).select(rows),
            )  # fmt: skip
            try:
                yield part
            finally:
                self.incumbent.merge(incumbent, rows)
                self._leave_out_finished()
                if draws is None:
                    self.draws.count = part.draws.count

    def retarget(self, goals: Goals) -> "Problem":
        """A view with other goals."""
        return replace(self, goals=goals)

    @property
    def has_low_precision(self) -> bool:
        """Whether ``for_search`` queries in a lower precision."""
        return self.evaluator.for_search is not self.evaluator and self.budget.remaining >= LEAST_LOW_PRECISION

    @contextmanager
    def for_search(self, *, at: Sequence[float] = CONFIRM_AT, claims: bool = False) -> Iterator["Problem"]:
        """A view that queries in the precision of the search; what it finds is confirmed in full precision at the end.

        Points that full precision does not confirm are tried further out, ``at`` multiples of their distance. Where
        the budget is spent, the point is kept: verification decides. With ``claims``, points within the error of that
        precision count as found too, and a pass per sample is withheld for the confirmation.
        """
        if not self.has_low_precision:
            yield self
            return
        self.searched.set()
        points, distance, low = self.incumbent.points, self.incumbent.distance, self.evaluator.for_search
        if claims:
            low = replace(low, tolerance=low.tolerance.reversed)
        self.budget.left -= int(claims)
        try:
            yield replace(self, evaluator=low)
        finally:
            self.budget.left += int(claims)
            self._confirm(points, distance, at)

    def _confirm(self, points: Points, distance: Scalars, at: Sequence[float]) -> None:
        """Query again, in full precision, what was found since these were the incumbents."""
        incumbent = self.incumbent
        x, size = incumbent.points, incumbent.distance
        new = (size < distance)[:, 0]
        able = (self.budget.left > 0).to(new.device)
        incumbent.points, incumbent.distance = points, distance
        for factor in at:
            pending = new & able & (incumbent.distance >= distance)[:, 0]
            with suppress(BudgetExhausted):
                view = replace(self, budget=self.budget.masked(pending, of_all=True))
                view.value(self.box.clamp(self.x0 + factor * (x - self.x0)))
        kept = (new & ~able)[:, None]
        incumbent.points = torch.where(kept, x, incumbent.points)
        incumbent.distance = torch.where(kept, size, incumbent.distance)
        if self.enough is not None:  # what the search took for finished may not be
            self.budget.activate(new)

    def for_each_sample(self, attack: Callable[["Problem"], None]) -> None:
        """Run an attack that handles one sample at a time on every active sample in turn."""
        for row in self.budget.active.tolist():
            with self.subproblem(torch.tensor([row]), draws=self.draws) as one:
                one.solve(attack)
        self.draws.skip()

    def run(self, step: Step, plan: Sequence[Sequence[float]], *state: Tensor, charged: Mask | None = None) -> State:
        """A step for each row of the plan, from this state to the last; on a GPU as a captured graph where possible.

        Each sample runs until the plan or its budget ends. With ``charged``, only these samples are charged, and can
        pay for the whole plan: the others wait.
        """
        table = to_device_of(torch.tensor(plan, dtype=self.x0.dtype), self.x0)
        if self.enough is None or charged is not None:
            return self.evaluator.run(self, step, table, state, charged)
        for block in table.split(STEPS_UNTIL_CHECK):
            self._leave_out_finished()
            if len(rows := self.budget.active) == 0:
                raise BudgetExhausted
            with self.subproblem(rows, known=True, draws=self.draws) as part:
                here = rows.to(self.x0.device)
                after = self.evaluator.run(part, step, block, tuple(tensor[here] for tensor in state), None)
            state = tuple(old.index_copy(0, here, new) for old, new in zip(state, after, strict=True))
        return state

    def _leave_out_finished(self) -> None:
        """Deactivate samples whose incumbent is near enough."""
        if self.enough is not None:
            self.budget.deactivate((self.incumbent.distance <= self.enough)[:, 0])

    def _query(
        self, x: Points, of: tuple[Loss, ...], offset: float | Tensor, *, gradients: bool = True
    ) -> tuple[list[tuple[Scalars, Points]], Tensor]:
        """Query the active samples: values and gradients of the losses, and the logits."""
        n, backwards = len(self.x0), len(of) if gradients else 0
        self._leave_out_finished()
        rows = self.budget.charge(1, backwards)
        answer = self.evaluator.query(Query(self.shape, of, gradients), x.detach()[rows], self.goals[rows])
        self.incumbent.offer(x, scatter_rows(answer.crossed, rows, n), self.goals, 1 + backwards, rows)
        self._leave_out_finished()
        if type(self.observer) is not Observer:
            origin = self.incumbent.origin_of(rows)
            origin = torch.arange(n, device=x.device) if origin is None else origin
            points, c = x[rows].detach(), answer.values[0][:, None]
            distance = self.norm.size(points - self.x0[rows])
            self.observer.record(Observation(origin, points, distance, c, self.incumbent.history))
        values = answer.values if isinstance(offset, float) and offset == 0 else answer.values - offset
        pairs = [
            (scatter_rows(value[:, None], rows, n), scatter_rows(gradient, rows, n))
            for value, gradient in zip(values, answer.gradients, strict=True)
        ]
        return pairs, scatter_rows(answer.logits, rows, n)


def _flip_weights(draws: Draws, h: Tensor) -> Tensor:
    """Weights of random units with the signs that lower |h|; zero for the others."""
    width = h.flatten(1).shape[1]
    weight = draws.uniform(width) * (draws.uniform(width) < FLIP_SHARE)
    return -torch.sign(h) * weight.view_as(h).to(h.dtype)
