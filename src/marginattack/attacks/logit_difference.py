r"""First-order attack on the logit difference, for the best target (Gupta, MNIST challenge leaderboard 2018: 88.85 %).

.. math:: \min_{t \ne y} \; \min_x \; l_y(x) - l_t(x) \quad \text{s.t.} \quad \|x - x_0\| \le \epsilon, \; x \in box
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.attacks.pgd import PGD
from marginattack.core.losses import MARGIN
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@final
@dataclass(frozen=True, kw_only=True)
class LogitDifferenceAttack(Attack):
    """Projected steepest descent on l_y − l_t for one class t after the other, the most likely at x₀ first.

    Each of the ``candidates`` highest other classes gets ``restarts`` runs from random starts; a run holds its class
    fixed, where ``losses.MARGIN`` would change it with the iterate. A targeted problem has its class already
    and gets that loss. No paper describes the leaderboard's entry: steps, starts and order are ours.
    """

    norms: ClassVar = PGD.norms
    cost: ClassVar = "1 forward a candidate, then 1 forward + 1 backward a step"
    reference: ClassVar = "Gupta 2018, MNIST challenge leaderboard"

    eps: float = 0.3
    steps: int = 40
    step: float = 1 / 30
    relative: bool = True
    candidates: int = 9
    restarts: int = 1
    stop: bool = True

    def __call__(self, problem: Problem) -> None:
        self.within(problem, torch.full_like(problem.incumbent.distance, self.eps))

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        """As ``PGD.within``, for each candidate."""
        pgd = PGD(
            steps=self.steps,
            step=self.step,
            relative=self.relative,
            loss=MARGIN,
            restarts=self.restarts,
            stop=self.stop,
        )
        for label in problem.highest_classes(problem.x0, most=self.candidates):
            pgd.leave(problem, radius)
            with problem.subproblem(targets=label) as towards:
                pgd.within(towards, radius, start)
