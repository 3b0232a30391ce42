r"""JSMA (Papernot et al. 2016): move the few features that the saliency map says matter most, as far as they go.

.. math:: \max_{p \ne q} \; -\Big(\sum_{i \in \{p,q\}} \frac{\partial F_t}{\partial x_i}\Big)
    \Big(\sum_{i \in \{p,q\}} \sum_{j \ne t} \frac{\partial F_j}{\partial x_i}\Big)
    \quad \text{s.t.} \quad \text{first factor} > 0 > \text{second}

over the features that can still move (their Alg. 3); the two then step by θ, until the class is reached, no pair is
admissible, or γ·d features have changed (their Alg. 2).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.losses import LOG_ODDS, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars

PAIRS_AT_ONCE = 2**24  # pairs whose saliency is held in memory


@runtime_checkable
class Saliency(Protocol):
    """(a, b) ↦ score, chosen features; a, b how far each feature's step moves the own class and the rest as wished.

    Both are −∞ for features that must not move. No feature is chosen where none has a positive score.
    """

    @property
    def features(self) -> int:
        """How many are chosen at a time."""

    def __call__(self, a: Points, b: Points) -> tuple[Scalars, Tensor]: ...


@dataclass(frozen=True)
class Single:
    """The feature with the largest a·b, both positive (their Eq. 8)."""

    features: ClassVar[int] = 1

    def __call__(self, a: Points, b: Points) -> tuple[Scalars, Tensor]:
        score, at = torch.where((a > 0) & (b > 0), a * b, 0).max(1, keepdim=True)
        return score, torch.zeros_like(a, dtype=torch.bool).scatter(1, at, score > 0)


@dataclass(frozen=True)
class Pairs:
    """The pair with the largest (a_p + a_q)(b_p + b_q), both sums positive (their Eq. 10, Alg. 3): exact.

    Both sums grow with a and b, so a feature that two others surpass in a and in b is never needed: they are left
    out by one sort, and what remains (a handful, as a rule) is searched pair by pair.
    """

    features: ClassVar[int] = 2

    def __call__(self, a: Points, b: Points) -> tuple[Scalars, Tensor]:
        few = _unsurpassed(a, b)
        a_few, b_few = a.gather(1, few), b.gather(1, few)
        width = few.shape[1]
        best, p, q = torch.zeros_like(a[:, :1]), few[:, :1], few[:, :1]
        for rows in torch.arange(width, device=a.device).split(max(1, PAIRS_AT_ONCE // (len(a) * width))):
            first, second = a_few[:, rows, None] + a_few[:, None], b_few[:, rows, None] + b_few[:, None]
            distinct = rows[:, None] != torch.arange(width, device=a.device)
            score = torch.where((first > 0) & (second > 0) & distinct, first * second, 0).flatten(1)
            score, at = score.max(1, keepdim=True)
            p = torch.where(score > best, few.gather(1, rows[at // width]), p)
            q = torch.where(score > best, few.gather(1, at % width), q)
            best = torch.maximum(score, best)
        nothing = torch.zeros_like(a, dtype=torch.bool)
        return best, nothing.scatter(1, p, best > 0).scatter(1, q, best > 0)


def _unsurpassed(a: Points, b: Points) -> Tensor:
    """The features that fewer than two others match in both a and b, as columns; the row's last ones fill it up."""
    a, order = a.sort(1, descending=True)
    b = b.gather(1, order)
    beaten = torch.minimum(b[:, 1:], b.cummax(1).values[:, :-1])  # of each newcomer and the best before it, the lesser
    second = torch.nn.functional.pad(beaten.cummax(1).values[:, :-1], (2, 0), value=-torch.inf)[:, : b.shape[1]]
    kept = b > second
    width = max(1, int(kept.sum(1).max()))
    return order.gather(1, kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width])


@final
@dataclass(frozen=True, kw_only=True)
class JSMA(Attack):
    """Step the most salient features by θ until the class changes.

    ``theta`` is the step as a share of the box's width, its sign the direction, 1 to the wall in one step; with
    ``both``, each step takes the better of θ and −θ (Wiyatno and Xu 2018). ``gamma``: the share of the features that
    may change. ``of`` names F. With probabilities Σ_j F_j = 1, so the two factors are the same but for their sign and
    a single belief says both: ``(LOG_ODDS,)``, whose slope is p's times a positive number and does not vanish. The
    paper's logits are ``(OWN, AGAINST_REST)``; ``(OWN,)`` is the map of ART 1.20: the two features that raise the
    target's logit most.

    Deviations: probabilities rather than logits, in both directions (50 digits of the bundled model, towards the
    runner-up: in the median 10 features; ART's map 16, the paper's logits 36). Untargeted, the belief in the label is
    lowered, whichever class takes over, instead of raising a target chosen beforehand (with the paper's logits 14
    features instead of 36). No feature goes back the way it came. γ counts features, not steps.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward a step of two features (2 backwards with the paper's map)"
    reference: ClassVar = "Papernot, McDaniel, Jha, Fredrikson, Celik, Swami 2016"

    theta: float = 1.0
    gamma: float = 1.0
    saliency: Saliency = Pairs()
    of: tuple[Loss, ...] = (LOG_ODDS,)
    both: bool = True

    def __call__(self, problem: Problem) -> None:
        x = problem.x0
        while True:  # until no sample is left to look at
            gradients = [g for _, g in problem.values_and_gradients(x, self.of)]
            moves = [self.move(problem, x, gradients[0], gradients[-1], theta) for theta in self.thetas]
            score, step = (torch.stack(column) for column in zip(*moves, strict=True))
            better = score.argmax(0, keepdim=True)
            problem.budget.deactivate(torch.isfinite(problem.incumbent.distance[:, 0]) | (score.amax(0)[:, 0] <= 0))
            x = problem.box.clamp(x + step.gather(0, better.expand(1, *x.shape))[0])

    @property
    def thetas(self) -> tuple[float, ...]:
        """The steps to choose from."""
        return (self.theta, -self.theta) if self.both else (self.theta,)

    def move(self, problem: Problem, x: Points, first: Points, second: Points, theta: float) -> tuple[Scalars, Points]:
        """The most salient features that can step by θ: their score and the step."""
        step = theta * torch.where(torch.isfinite(problem.box.hi - problem.box.lo), problem.box.hi - problem.box.lo, 1)
        changed = x != problem.x0
        room = changed.sum(1, keepdim=True) <= self.gamma * x.shape[1] - self.saliency.features
        # A feature at its wall, or one that came from the other side, would undo a step: the loop has to end.
        onward = (problem.box.clamp(x + step) != x) & ((x - problem.x0) * step >= 0)
        a, b = (torch.where((changed | room) & onward, -g * step, -torch.inf) for g in (first, second))
        score, chosen = self.saliency(a, b)
        return score, torch.where(chosen, step, 0)
