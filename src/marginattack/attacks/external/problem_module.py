"""ProblemModule: a Problem as the ``nn.Module`` that another library's attack expects.

Every row that the attack evaluates is charged as one forward of its sample, and every backward that reaches the images
as one backward of each row's sample; incumbents are chosen as for our own attacks. Once the budget of a sample is
spent, the module answers as if it were adversarial, with a zero gradient, so that attacks that skip finished samples
skip it. ``BudgetExhausted`` ends the attack when no budget is left.

The library sees images in [0, 1], since some know no other bounds: the box, which is the same for all features, is
mapped to [0, 1], and distances by its width.

Attacks that continue with some of the samples index the batch, so the rows of a smaller batch keep their order: they
are assigned to the increasing sequence of samples with the smallest sum of distances. Inputs that leave the box only by
rounding, x + (clamp(x + δ) − x), are clamped; others are evaluated unchanged, but never become incumbents.
"""

from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core import losses
from marginattack.core.budget import BudgetExhausted
from marginattack.core.problem import Problem

ROUNDING = 1e-6  # distance outside the box, relative to its width, that counts as rounding


class ProblemModule(nn.Module):
    """Images to logits; the problem counts the passes and keeps the incumbents."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem, self.labels = problem, problem.labels
        self.lo = float(problem.box.lo.min())
        self.width = float(problem.box.hi.max()) - self.lo
        self.unit = (self.lo, self.width) == (0, 1)  # nothing is mapped
        x0 = problem.x0 if self.unit else ((problem.x0 - self.lo) / self.width).clamp(0, 1)
        self.images: Tensor = x0.unflatten(1, problem.shape)
        # Libraries read a model's device from its parameters; the images may be on another device than the real model.
        self.device_marker = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        n = len(self.images)
        if len(images) > n:
            raise ValueError(
                f"the attack evaluates {len(images)} rows for {n} samples: pass at most one row per sample"
            )
        x0 = self.images.flatten(1)
        samples = torch.arange(n) if len(images) == n else assign_in_order(images.detach().flatten(1).to(x0), x0)
        return self.evaluate(images, samples).to(images.device)

    def evaluate(self, images: Tensor, samples: Tensor) -> Tensor:
        """Logits of rows of these samples, on the model's device; charges a forward each and updates the incumbents."""
        problem = self.problem
        if problem.budget.remaining < 1:
            raise BudgetExhausted
        charged = charge(problem, samples, forwards=1)
        x: Tensor = _ChargeBackward.apply(images.to(problem.x0.device), self, samples)  # type: ignore[no-untyped-call]
        label = self.labels[samples.to(x.device)]
        answer = -nn.functional.one_hot(label, problem.evaluator.classes).to(problem.x0)  # as if adversarial
        if not bool(charged.any()):
            return answer + 0 * x.flatten(1).sum(1, keepdim=True)  # differentiable
        rows = charged.to(x.device).nonzero()[:, 0]
        evaluator = problem.evaluator
        logits = torch.cat([evaluator.logits(part) for part in x[rows].split(evaluator.batch_size)])
        record(problem, samples[charged], x.detach().flatten(1)[rows], logits.detach())
        return answer.index_copy(0, rows, logits)

    @torch.no_grad()
    def submit(self, images: Tensor) -> None:
        """Evaluate the points that the attack returned, if they are new and a forward is left."""
        images = images.detach().to(self.problem.x0.device)
        x = self.restore(images, torch.arange(len(images))).flatten(1)
        new = (x != self.problem.incumbent.points).any(1) & (x != self.problem.x0).any(1)
        if bool(new.any()):
            self.evaluate(images[new], new.nonzero()[:, 0].cpu())

    def restore(self, images: Tensor, samples: Tensor) -> Tensor:
        """Images in [0, 1] of these samples as inputs in the box; pixels equal to those of x₀ are x₀'s."""
        if self.unit:
            return self.clamp_rounding(images)
        rows = samples.to(images.device)
        x0 = self.problem.x0[rows].view_as(images).to(images)
        same = images == self.images[rows].to(images)
        return self.clamp_rounding(torch.where(same, x0, self.lo + self.width * images))

    def clamp_rounding(self, images: Tensor) -> Tensor:
        """Clamp pixels that are outside the box only by rounding."""
        problem = self.problem
        lo, hi = (
            bound.expand_as(problem.x0[:1]).unflatten(1, problem.shape) for bound in (problem.box.lo, problem.box.hi)
        )
        inside = torch.clamp(images, lo, hi)
        return torch.where((images - inside).abs() <= ROUNDING * (hi - lo), inside, images)


class _ChargeBackward(torch.autograd.Function):
    """Images in [0, 1] to inputs; its backward charges each sample and zeroes the gradients of those without budget."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, module: ProblemModule, samples: Tensor) -> Tensor:
        ctx.problem, ctx.samples, ctx.width = module.problem, samples, module.width
        return module.restore(images, samples).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        charged = charge(ctx.problem, ctx.samples, backwards=1).to(gradient.device)
        return torch.where(charged.view(-1, *[1] * (gradient.ndim - 1)), ctx.width * gradient, 0), None, None


def charge(problem: Problem, samples: Tensor, *, forwards: int = 0, backwards: int = 0) -> Tensor:
    """Charge one pass to each active sample with budget left; return the mask of those charged."""
    charged = problem.budget.affordable(samples)
    problem.budget.spend(samples[charged], forwards, backwards)
    if backwards:  # forwards are entered by ``record``, with the distance of their points
        rows, incumbent = samples[charged].to(problem.x0.device), problem.incumbent
        nothing = problem.x0.new_full((len(rows), 1), torch.inf)
        incumbent.history.record(incumbent.origin_of(rows), torch.ones_like(rows), nothing)
    return charged


def record(problem: Problem, samples: Tensor, x: Tensor, logits: Tensor) -> None:
    """Make each point that is adversarial and nearer than its sample's incumbent the new one; update the history."""
    rows = samples.to(x.device)
    own, other = losses.compare(logits, problem.labels[rows])
    tolerance = problem.evaluator.tolerance.of(losses.scale(logits, own, other))
    crossed = torch.zeros(len(problem.x0), dtype=torch.bool, device=x.device)
    crossed[rows] = own - other + tolerance < 0
    points = problem.x0.index_copy(0, rows, x.to(problem.x0))
    problem.incumbent.offer(points, crossed, problem.goals, 1, rows)


def assign_in_order(x: Tensor, originals: Tensor) -> Tensor:
    """An original for each row: the increasing sequence with the smallest sum of distances."""
    cost = torch.cdist(x, originals).double().cpu()
    nearest = cost.argmin(1)
    if bool((nearest.diff() > 0).all()):
        return nearest
    least = torch.zeros(len(originals) + 1, dtype=torch.float64)  # cost of the rows so far with the first j originals
    choices = []
    for row in cost:
        values, choice = (least[:-1] + row).cummin(0)
        choices.append(choice)
        least = torch.cat([torch.full((1,), torch.inf, dtype=torch.float64), values])
    assigned, end = [], len(originals)
    for choice in reversed(choices):
        end = int(choice[end - 1])
        assigned.append(end)
    return torch.tensor(assigned[::-1])
