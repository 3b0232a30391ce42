"""Guest: a Problem as the nn.Module that another library's attack expects, so that it is counted and judged like ours.

A guest attack calls the module with rows of images and differentiates what comes back. Every row that it looks at is
one forward of its sample, every backward that reaches the images one backward of each row's sample; points are judged
as those of our own attacks are. A sample whose budget is spent is not looked at any more: it is answered as if it were
adversarial, without a slope, so that attacks that leave out what they are done with leave it out. When every sample
has spent its budget, ``Finished`` ends the guest.

Whose row is it? A batch of all n samples comes in their order. Attacks that go on with some samples alone index the
batch, so the rows of a smaller one keep their order too: they belong to the increasing samples whose originals are
nearest in sum, which is found exactly.

Inputs that leave the box by rounding alone, x + (clamp(x + δ) − x), are put back inside; others are looked at where
they are, as the guest expects, but do not count as found.
"""

from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core import losses
from marginattack.core.problem import Finished, Problem

ROUNDED = 1e-6  # how far outside the box, as a share of its width, a point is taken to be inside but for rounding


class Guest(nn.Module):
    """The problem as a module from images to logits."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        # Libraries ask a model where it is through its parameters; the images may be elsewhere than the real one.
        self.place = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.classes = problem.classifier.classes

    @property
    def images(self) -> Tensor:
        """The originals."""
        images: Tensor = self.problem.x0.unflatten(1, self.problem.shape)
        return images

    @property
    def labels(self) -> Tensor:
        """Their classes."""
        return self.problem.classes

    def forward(self, images: Tensor) -> Tensor:
        return self.look(images, self.rows(images)).to(images.device)

    def rows(self, images: Tensor) -> Tensor:
        """The sample of each row."""
        n = len(self.problem.x0)
        if len(images) > n:
            raise ValueError(f"the attack looks at {len(images)} rows for {n} samples: they cannot be told apart")
        if len(images) == n:
            return torch.arange(n)
        return in_order(images.detach().flatten(1).to(self.problem.x0), self.problem.x0)

    def look(self, images: Tensor, rows: Tensor) -> Tensor:
        """Logits of these rows, on the model's device; counted and judged."""
        problem = self.problem
        if problem.left < 1:
            raise Finished
        paid = self.pay(rows, "forwards")
        x: Tensor = _Door.apply(images.to(problem.x0.device), self, rows)  # type: ignore[no-untyped-call]
        answer = -nn.functional.one_hot(self.labels[rows.to(x.device)], self.classes).to(problem.x0)
        if not bool(paid.any()):
            return answer + 0 * x.flatten(1).sum(1, keepdim=True)
        here = paid.to(x.device)
        chunks = (x if bool(paid.all()) else x[here]).split(problem.classifier.chunk)
        logits = torch.cat([problem.classifier.logits(part) for part in chunks])
        self.judge(x.detach().flatten(1)[here], rows[paid], logits.detach())
        return logits if bool(paid.all()) else answer.index_copy(0, here.nonzero()[:, 0], logits)

    def pay(self, rows: Tensor, what: str) -> Tensor:
        """Charge one pass to each of these samples that can afford it; which."""
        problem = self.problem
        paid = (problem._left[rows] > 0) & torch.isin(rows, problem._live)
        getattr(problem, what)[rows[paid]] += 1
        problem._left[rows[paid]] -= 1
        if what == "backwards":
            there = rows[paid].to(problem.x0.device)
            problem.anytime.see(there, torch.ones_like(there), problem.x0.new_full((len(there), 1), torch.inf))
        return paid

    def judge(self, x: Tensor, rows: Tensor, logits: Tensor) -> None:
        """Keep what is adversarial and nearer than before."""
        problem, there = self.problem, rows.to(x.device)
        own, other = losses.compared(logits, self.labels[there])
        rounding = problem.classifier.lead(x, losses.scale(logits, own, other))
        crossed = torch.zeros(len(problem.x0), dtype=torch.bool, device=x.device)
        crossed[there] = own - other + rounding < 0
        size = problem._judge(problem.x0.index_copy(0, there, x.to(problem.x0)), crossed)
        problem.anytime.see(there, torch.ones_like(there), size[there])

    @torch.no_grad()
    def offer(self, images: Tensor) -> None:
        """The points that the attack returned: those that were not looked at yet cost a forward, where it is left."""
        images = self.nudged(images.detach().to(self.problem.x0.device))
        new = (images.flatten(1) != self.problem.best).any(1) & (images.flatten(1) != self.problem.x0).any(1)
        if bool(new.any()):
            self.look(images[new], new.nonzero()[:, 0].cpu())

    def nudged(self, images: Tensor) -> Tensor:
        """Images with what rounding put outside the box back inside."""
        problem = self.problem
        lo, hi = (wall.expand_as(problem.x0[:1]).unflatten(1, problem.shape) for wall in (problem.lo, problem.hi))
        inside = torch.clamp(images, lo, hi)
        return torch.where((images - inside).abs() <= ROUNDED * (hi - lo), inside, images)


class _Door(torch.autograd.Function):
    """Images on their way to the model; slopes on their way back, for those who can pay."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, guest: Guest, rows: Tensor) -> Tensor:
        ctx.guest, ctx.rows = guest, rows
        return guest.nudged(images).clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        (slope,) = slopes
        paid = ctx.guest.pay(ctx.rows, "backwards").to(slope.device)
        return torch.where(paid.view(-1, *[1] * (slope.ndim - 1)), slope, 0), None, None


def in_order(x: Tensor, originals: Tensor) -> Tensor:
    """For each row the original that it belongs to: of all increasing choices that with the least sum of distances."""
    cost = torch.cdist(x, originals).double().cpu()
    nearest = cost.argmin(1)
    if bool((nearest.diff() > 0).all()):
        return nearest
    m, n = cost.shape
    least = torch.zeros(n + 1, dtype=torch.float64)  # of the rows so far, when only the first j originals are used
    chosen = []
    for i in range(m):
        ends = least[:-1] + cost[i]
        values, where = ends.cummin(0)
        chosen.append(where)
        least = torch.cat([torch.full((1,), torch.inf, dtype=torch.float64), values])
    rows, end = [], n
    for where in reversed(chosen):
        end = int(where[end - 1])
        rows.append(end)
    return torch.tensor(rows[::-1])
