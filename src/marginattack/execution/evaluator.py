"""ModelEvaluator: answers queries with the fastest copy of a model, as CUDA graphs where possible."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

import torch
from torch import Tensor, nn

from marginattack.core.budget import BudgetExhausted, Prepaid
from marginattack.core.calibration import Tolerance
from marginattack.core.flags import tf32
from marginattack.core.problem import Evaluator, Observer, Problem, Step, run_eager
from marginattack.core.queries import Answer, Query, evaluate, input_gradient
from marginattack.core.types import Goals, Logits, Mask, Points, State
from marginattack.errors import InputError
from marginattack.execution import fused as fused  # registers the kernels
from marginattack.execution import graphs
from marginattack.execution.compilation import Compiler
from marginattack.execution.copies import Copies
from marginattack.execution.features import record_output
from marginattack.execution.graphs import Graphs


@dataclass(frozen=True, eq=False)
class ModelEvaluator(Evaluator):
    """A model evaluated in one precision; ``search`` is the precision of searches and its tolerance."""

    copies: Copies
    graphs: Graphs
    compiler: Compiler
    channels_last: bool = False
    edits_input: bool = False  # the model gets a copy in each pass, on a GPU too
    precision: str = "float32"
    search: tuple[str, Tolerance] | None = None
    scale: Tensor | None = None  # points are inputs over this
    cancelled: Event | None = None  # once set, no sample can be queried any more
    inside_graph: bool = False  # passes are made as they come: all rows at once, none captured

    def logits(self, images: Tensor, *, repeated: bool = False) -> Logits:
        """The logits in the precision of the images; ``repeated`` passes of a full batch are compiled."""
        images = images if self.scale is None else images * self.scale
        ready = self.copies.classifier.cast(images)
        if self.channels_last:
            ready = ready.contiguous(memory_format=torch.channels_last)
        copied = self.edits_input or not ready.is_cuda  # on a CPU a model can write past torch, through numpy
        ready = ready.clone() if copied else ready
        compiled, version = repeated and len(images) == self.full_batch, ready._version
        model = self.model(ready)
        logits: Logits = self.compiler(model, ready, self.precision) if compiled else model(ready)
        if ready._version != version and not copied:
            raise InputError("model changes some of its inputs in place, but not the first: make it work on a copy")
        return logits.to(images.dtype)

    def model(self, images: Tensor) -> nn.Module:
        """The copy of the model for this precision."""
        return self.copies.in_precision(self.precision, images)

    def hidden_gradient(self, images: Tensor, layer: int, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient of weigh(h)ᵀh by the images, h the outputs of a hidden layer; the logits where there is none."""
        images = images.detach().requires_grad_()
        with self.flags(), torch.enable_grad(), record_output(self.model(images), layer) as outputs:
            logits = self.logits(images)
        calls = [output for output in outputs if output.shape == outputs[-1].shape]  # several for a randomised model
        h = torch.stack(calls).mean(0) if calls and len(calls[0]) == len(images) else logits
        return input_gradient(h, images, keep=False, weight=weigh(h.detach()))

    @property
    def full_batch(self) -> int:
        """The batch size that the model is compiled for; 0: it is not."""
        return 0 if self.compiler.why_not else self.batch_size

    def query(self, query: Query, points: Points, goals: Goals) -> Answer:
        if self.cancelled is not None and self.cancelled.is_set():
            raise BudgetExhausted
        with self.flags():
            return self.query_batch(query, points, goals) if self.inside_graph else super().query(query, points, goals)

    def query_batch(self, query: Query, points: Points, goals: Goals) -> Answer:
        model = partial(self.logits, repeated=query.gradients and len(query.losses) == 1)
        answer = partial(evaluate, model, self.tolerance, query)
        if self.inside_graph:
            return answer(points, goals)
        kind = (query, self.tolerance, self.precision)
        return self.graphs.query(answer, kind, self.full_batch, points, goals)

    def run(self, problem: Problem, step: Step, table: Tensor, state: State, charged: Mask | None) -> State:
        """What every sample (``charged``: each of these) can pay for is charged at once and run as a graph."""
        value = graphs.is_value(step)
        if not self.can_interleave(problem) or (charged is None and not value):  # it may leave some out
            return run_eager(problem, step, table, state)
        n = len(problem.x0)
        rows = torch.ones(n, dtype=torch.bool) if charged is None else charged.cpu()
        ahead = min(len(table), min(problem.budget.remaining_of(rows), default=0) // step.passes)
        if ahead:
            problem.budget.spend(rows, step.queries * ahead, step.queries * step.backwards * ahead)
            paid = replace(problem, budget=Prepaid(n))
            if value:
                inside, kind = replace(self, inside_graph=True), (self.tolerance, self.precision, problem.x0.dtype)
                with self.flags():
                    state = self.graphs.run(
                        paid, inside, kind, graphs.graph_rows(n, self.full_batch), step, table[:ahead], state
                    )
            else:
                state = run_eager(paid, step, table[:ahead], state)
        return run_eager(problem, step, table[ahead:], state)

    def can_interleave(self, problem: Problem) -> bool:
        active = len(problem.budget.active)
        fits = 0 < active == len(problem.x0) <= self.batch_size
        observed = type(problem.observer) is not Observer
        captured = problem.incumbent.unique and problem.box.shared and graphs.can_capture(problem.x0)
        return fits and captured and not observed

    @property
    def for_search(self) -> Evaluator:
        if self.search is None:
            return self
        precision, tolerance = self.search
        return replace(self, precision=precision, tolerance=tolerance, search=None)

    @property
    def search_precision(self) -> str:
        """The precision of searches."""
        return self.precision if self.search is None else self.search[0]

    def flags(self) -> AbstractContextManager[None]:
        """Torch's precision flags for passes in this precision."""
        return tf32(True) if self.precision == "tf32" else nullcontext()
