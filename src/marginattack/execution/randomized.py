"""Randomised models: queries that average draws, and the test of a rate on fresh ones.

Each draw is a pass of its own, never a repeated row of a batch: a model may draw once per batch, as random resizing
does.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from marginattack.core import losses
from marginattack.core.incumbent import Incumbent
from marginattack.core.problem import Problem
from marginattack.core.queries import Answer, Query, evaluate
from marginattack.core.randomized import Randomized
from marginattack.core.types import Goals, Labels, Logits, Mask, Points, Scalars
from marginattack.core.validation import Batch
from marginattack.errors import InputError
from marginattack.execution.evaluator import ModelEvaluator


@dataclass(frozen=True, eq=False)
class RandomizedEvaluator(ModelEvaluator):
    """Answers with the mean of ``rule.eot`` draws; decides by how many of them are misclassified."""

    rule: Randomized = field(default_factory=Randomized)

    def logits(self, images: Tensor, *, repeated: bool = False) -> Logits:
        """The mean logits of the draws, differentiable."""
        return self._draw(images).mean(0)

    def query_batch(self, query: Query, points: Points, goals: Goals) -> Answer:
        """Value and gradient of the mean logits; a margin is moved so that it is negative where the draws decide so."""
        drawn: list[Tensor] = []

        def mean(images: Tensor) -> Logits:
            drawn.append(self._draw(images))
            return drawn[0].mean(0)

        answer = evaluate(mean, self.tolerance, query, points, goals)
        label, direction = goals.unbind(1)
        margins = torch.stack([direction * losses.MARGIN(logits.detach(), label) for logits in drawn[0]])
        deciding = margins.kthvalue(self.rule.crossed_draws, dim=0).values
        own, other = losses.compare(answer.logits, label)
        undecided = self.tolerance.of(losses.scale(answer.logits, own, other))
        shift = (deciding - direction * (own - other)).nan_to_num(0.0)
        moved = [isinstance(loss, losses.Margin | losses.RankedMargin) for loss in query.losses]
        values = answer.values + torch.tensor(moved, device=shift.device)[:, None] * shift
        return answer._replace(values=values, crossed=deciding + undecided < 0)

    def _draw(self, images: Tensor) -> Tensor:
        return torch.stack([super(RandomizedEvaluator, self).logits(images) for _ in range(self.rule.eot)])


class AwayFromInput(Incumbent):
    """An incumbent that is never the input itself, which was tested with more draws than a query makes."""

    def judge(self, x: Points, crossed: Mask) -> Scalars:
        return super().judge(x, crossed & (x != self.x0).any(1))


def confirm_rate(rule: Randomized, batch: Batch, draw: Callable[[Tensor], Logits]) -> tuple[Mask, Labels]:
    """Whether each sample is confirmed to reach its goal at the rate; the class that it reaches most often.

    ``draw`` returns the logits of some rows from one fresh draw. A row is tested until it is confirmed or no longer
    looks like it. Logits that are not finite reach no goal.
    """
    votes = torch.zeros(len(batch), batch.classes, dtype=torch.int64)
    holds, pending, drawn = torch.zeros(len(batch), dtype=torch.bool), torch.arange(len(batch)), 0
    for stage in rule.stages:
        for _ in range(stage.draws - drawn if len(pending) else 0):
            logits = draw(pending)
            finite = torch.isfinite(logits).all(1)
            votes[pending[finite], logits[finite].argmax(1)] += 1
        drawn = stage.draws
        reached = votes_for_goal(batch, votes).sum(1)[pending]
        holds[pending] = reached >= stage.confirmed
        pending = pending[~holds[pending] & (reached > rule.needed_rate * drawn)]
    return holds, votes_for_goal(batch, votes).argmax(1)


def not_contradicted(rule: Randomized, draw: Callable[[], Logits], reached: Callable[[Labels], Mask]) -> Mask:
    """Which points ``rule.draws`` fresh draws do not contradict to reach their goal at the rate."""
    hits = torch.zeros((), dtype=torch.int64)
    for _ in range(rule.draws):
        logits = draw()
        hits = hits + (torch.isfinite(logits).all(1) & reached(logits.argmax(1)))
    return hits > rule.contradicted


def towards_tangent_plane(problem: Problem, rows: Mask) -> Points:
    """The points of the tangent planes at the inputs, from one more gradient for these rows.

    The direction that remains for inputs so close to the rate that a search finds lucky points next to them.
    """
    problem.budget.left[rows] += 2
    part = replace(problem, budget=problem.budget.masked(rows, of_all=True))
    c, g = part.value_and_gradient(problem.x0)
    return problem.norm.onto_plane(problem.x0, g, c.abs(), problem.box)


def votes_for_goal(batch: Batch, votes: Tensor) -> Tensor:
    """The votes for classes that an attack wants: any but the label, or the target."""
    goal = batch.labels if batch.targets is None else batch.targets
    chosen = torch.nn.functional.one_hot(goal, batch.classes).bool()
    return votes.masked_fill(chosen if batch.targets is None else ~chosen, 0)


def seed_torch(seed: int, ids: Tensor) -> None:
    """Seed torch's generators for these samples."""
    digest = hashlib.blake2b(f"{seed}:{ids.tolist()}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest))


def require_separate_rows(model: nn.Module) -> None:
    """Refuse a model that normalises over the batch, whose draws would depend on the other inputs.

    Raises:
        InputError: A batch normalisation uses the statistics of the batch.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise InputError(f"{name or 'model'} normalises over the batch: use BatchNorm with running statistics")
