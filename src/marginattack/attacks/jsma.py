r"""JSMA (Papernot et al. 2016): repeatedly change the few features with the largest saliency.

.. math:: \max_{p \ne q} \; -\Big(\sum_{i \in \{p,q\}} \frac{\partial F_t}{\partial x_i}\Big)
    \Big(\sum_{i \in \{p,q\}} \sum_{j \ne t} \frac{\partial F_j}{\partial x_i}\Big)
    \quad \text{s.t.} \quad \text{first factor} > 0 > \text{second}

over the features that can still move (their Alg. 3). Both then change by θ, until the class is reached, no pair is
admissible, or γ·d features have changed (their Alg. 2).
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.losses import LOG_ODDS, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars

PAIRS_AT_ONCE = 2**24  # pairs whose saliency is kept in memory


# A saliency maps (a, b) to a score and the chosen features, none if no score is positive. a and b: how far a step of
# each feature moves the own class and the others towards the goal; −∞ for features that must not move.
@dataclass(frozen=True)
class Single:
    """The feature with the largest a·b, both positive (their Eq. 8)."""

    features: ClassVar = 1

    def __call__(self, a: Points, b: Points) -> tuple[Scalars, Tensor]:
        score, at = torch.where((a > 0) & (b > 0), a * b, 0).max(1, keepdim=True)
        return score, torch.zeros_like(a, dtype=torch.bool).scatter(1, at, score > 0)


@dataclass(frozen=True)
class Pairs:
    """The pair with the largest (a_p + a_q)(b_p + b_q), both sums positive (their Eq. 10, Alg. 3): exact.

    Both sums grow with a and b, so a feature that two others exceed in both a and b is never chosen: one sort leaves
    those out, and the pairs of the others (usually a handful) are compared.
    """

    features: ClassVar = 2

    def __call__(self, a: Points, b: Points) -> tuple[Scalars, Tensor]:
        front = _front(a, b)
        a_front, b_front = a.gather(1, front), b.gather(1, front)
        width = front.shape[1]
        best, pair = torch.zeros_like(a[:, :1]), torch.zeros_like(front[:, :1]).expand(-1, 2)
        for rows in torch.arange(width, device=a.device).split(max(1, PAIRS_AT_ONCE // (len(a) * width))):
            first, second = a_front[:, rows, None] + a_front[:, None], b_front[:, rows, None] + b_front[:, None]
            distinct = rows[:, None] != torch.arange(width, device=a.device)
            score = torch.where((first > 0) & (second > 0) & distinct, first * second, 0).flatten(1)
            score, at = score.max(1, keepdim=True)
            pair = torch.where(score > best, torch.cat([rows[at // width], at % width], dim=1), pair)
            best = torch.maximum(score, best)
        none = torch.zeros_like(a, dtype=torch.bool)
        return best, none.scatter(1, front.gather(1, pair), (best > 0).expand(-1, 2))


def _front(a: Points, b: Points) -> Tensor:
    """The features that fewer than two others exceed in both a and b, as columns; shorter rows are padded."""
    a, order = a.sort(1, descending=True)
    b = b.gather(1, order)
    # The second largest b before each column is the largest of min(b, largest b before it).
    beaten = torch.minimum(b[:, 1:], b.cummax(1).values[:, :-1])
    second = torch.nn.functional.pad(beaten.cummax(1).values[:, :-1], (2, 0), value=-torch.inf)[:, : b.shape[1]]
    kept = b > second
    width = max(1, int(kept.sum(1).max()))
    return order.gather(1, kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width])


@final
@dataclass(frozen=True, kw_only=True)
class JSMA(Attack):
    """Change the most salient features by θ until the class changes.

    Deviations: probabilities instead of logits, in both directions (50 digits of the bundled model, towards the
    runner-up: median 10 features; 16 with ART's map, 36 with the paper's logits). Untargeted, the label is left for any
    class, not for one chosen beforehand (with the paper's logits 14 features instead of 36). No feature moves back. γ
    counts features, not steps.

    Args:
        theta: Step as a share of the box's width; its sign is the direction, and 1 reaches the bound in one step.
        gamma: The share of the features that may change.
        saliency: ``Pairs()``, or ``Single()`` for one feature at a time.
        of: F. Probabilities add up to 1, so the factors differ in sign only and one loss is enough: ``(LOG_ODDS,)``,
            whose gradient has the direction of the probability's and does not vanish. ``(OWN, AGAINST_REST)`` are the
            paper's logits; ``(OWN,)`` is the map of ART 1.20, the features that raise the target's logit most.
        both: Whether each step takes the better of θ and −θ (Wiyatno and Xu 2018).

    Example:
        >>> import torch, marginattack as ma
        >>> x = torch.tensor([[0.9, 0.2, 0.1]])
        >>> ma.measure(torch.nn.Identity(), x, [0], "l0", attack=ma.attacks.JSMA()).distance.tolist()
        [2.0]
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward per step of two features (2 backwards with the paper's map)"
    reference: ClassVar = "Papernot, McDaniel, Jha, Fredrikson, Celik, Swami 2016"

    theta: float = 1.0
    gamma: float = 1.0
    saliency: Pairs | Single = Pairs()
    of: tuple[Loss, ...] = (LOG_ODDS,)
    both: bool = True

    def __call__(self, problem: Problem) -> None:
        thetas = (self.theta, -self.theta) if self.both else (self.theta,)
        x = problem.x0
        while True:  # a query without active samples ends the attack
            gradients = [g for _, g in problem.values_and_gradients(x, self.of)]
            moves = [self.move(problem, x, gradients[0], gradients[-1], theta) for theta in thetas]
            score, step = (torch.stack(column) for column in zip(*moves, strict=True))
            better = score.argmax(0, keepdim=True)
            problem.budget.deactivate(torch.isfinite(problem.incumbent.distance[:, 0]) | (score.amax(0)[:, 0] <= 0))
            x = problem.box.clamp(x + step.gather(0, better.expand(1, *x.shape))[0])

    def move(self, problem: Problem, x: Points, first: Points, second: Points, theta: float) -> tuple[Scalars, Points]:
        """Score and step of the most salient features that can move by θ."""
        step = theta * torch.where(problem.box.width > 0, problem.box.width, 1)
        changed = x != problem.x0
        room = changed.sum(1, keepdim=True) <= self.gamma * x.shape[1] - self.saliency.features
        # Features at a bound, or moved the other way before, would undo a step: without them the loop ends.
        onward = (problem.box.clamp(x + step) != x) & ((x - problem.x0) * step >= 0)
        a, b = (torch.where((changed | room) & onward, -g * step, -torch.inf) for g in (first, second))
        score, chosen = self.saliency(a, b)
        return score, torch.where(chosen, step, 0)
