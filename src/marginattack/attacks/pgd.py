r"""PGD (Madry, Makelov, Schmidt, Tsipras, Vladu 2018): descend a loss inside a ball of fixed radius.

.. math:: \min_x L(x) \;\; \text{s.t.} \;\; \|x - x_0\| \le \epsilon, \; x \in box, \qquad
    x^+ = \Pi_{ball}(x - \eta \, s), \;\; s = \arg\max_{\|s\| \le 1} \nabla L(x)^\top s
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@final
@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """``steps`` steps of steepest descent from each of ``restarts`` random starts, all within ``eps`` of x₀.

    ``step`` is a share of eps or, unless ``relative``, in pixels. With ``stop`` a sample ends at its first
    adversarial point: the margin reported is then any distance up to eps.

    Deviations: every iterate is judged, not the last alone. The step is the steepest one inside the box (``stepped``),
    where the original steps and clips; away from the walls they are the same.
    """

    norms: ClassVar = ("l1", "l2", "linf")
    cost: ClassVar = "1 forward + 1 backward a step"
    reference: ClassVar = "Madry, Makelov, Schmidt, Tsipras, Vladu 2018"

    eps: float = 0.3
    steps: int = 40
    step: float = 1 / 30
    relative: bool = True
    loss: Loss = CROSS_ENTROPY
    random: bool = True
    restarts: int = 1
    stop: bool = True

    def __call__(self, problem: Problem) -> None:
        self.within(problem, torch.full_like(problem.incumbent.distance, self.eps))

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        """Attack each sample within its own radius, the first time from ``start`` where that is given."""
        for x in starts(problem, radius, start, self.restarts, random=self.random):
            self.descend(problem, x, radius, self.loss)

    def descend(self, problem: Problem, x: Points, radius: Scalars, loss: Loss) -> None:
        """One run from x."""
        for _ in range(self.steps):
            _, g = problem.value_and_gradient(x, loss=loss)
            self.leave(problem, radius)
            x = stepped(problem, x, g, self.length(radius), radius)
        problem.value(x)
        self.leave(problem, radius)

    def length(self, radius: Scalars) -> Scalars:
        """η"""
        return self.step * radius if self.relative else torch.full_like(radius, self.step)

    def leave(self, problem: Problem, radius: Scalars) -> None:
        """What is adversarial within its radius is done, if one such point is enough."""
        if self.stop:
            problem.budget.deactivate((problem.incumbent.distance <= radius)[:, 0])


def starts(problem: Problem, radius: Scalars, first: Points | None, number: int, *, random: bool) -> list[Points]:
    """Where to begin, ``first`` the first where it is given.

    They are drawn together and up front: how many draws are spent then does not depend on when the samples of a
    batch end, and so the next draws of a sample do not depend on its company.
    """
    drawn = [anywhere(problem, radius) if random else problem.x0 for _ in range(number)]
    return drawn if first is None else [first, *drawn[1:]]


def anywhere(problem: Problem, radius: Scalars) -> Points:
    """A random point of the ball, clipped to the box.

    The distance is that of a uniform draw, t^(1/d) of the radius. So is the direction for ℓ∞; for the other norms it
    leans a little to the diagonals, because it comes from the cube.
    """
    direction, t = 2 * problem.draws.uniform() - 1, problem.draws.uniform()[:, :1]
    far = radius * t ** (1 / direction.shape[1])
    return inside(problem, problem.x0 + far * direction / problem.norm.size(direction), radius)


def stepped(problem: Problem, x: Points, g: Points, length: Scalars, radius: Scalars) -> Points:
    """The shortest move inside the box that lowers gᵀx as much as a free steepest step of that length, then the ball.

    Coordinates that stand at a wall leave their part to the others. That helps a little in ℓ2 and ℓ∞, and ℓ1 lives
    on it: the free step moves one coordinate alone, and stands still once that one has met its wall.
    """
    return inside(problem, problem.norm.onto_plane(x, g, length * problem.norm.dual(g), problem.box), radius)


def inside(problem: Problem, x: Points, radius: Scalars) -> Points:
    """Bring x into the box and the ball, whose radius is cut by a hair lest rounding put points outside."""
    hair = torch.finfo(x.dtype).eps * (problem.norm.size(problem.x0) + radius)
    return problem.norm.onto_ball(problem.box.clamp(x), problem.x0, (radius - hair).clamp(min=0))
