r"""First-order attack on the logit difference, for the best target (Gupta, MNIST challenge leaderboard 2018: 88.85 %).

.. math:: \min_{t \ne y} \; \min_x \; l_y(x) - l_t(x) \quad \text{s.t.} \quad \|x - x_0\| \le \epsilon, \; x \in box
"""

from dataclasses import dataclass
from typing import ClassVar, final

from marginattack.attacks.pgd import PGD, FixedRadiusAttack
from marginattack.core.losses import MARGIN
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@final
@dataclass(frozen=True, kw_only=True)
class LogitDifferenceAttack(FixedRadiusAttack):
    """Projected steepest descent on l_y − l_t for one class t after another, the most likely at x₀ first.

    A run keeps its class t; ``losses.MARGIN`` would change it with the iterate. A targeted problem has a single class.
    The leaderboard entry has no paper: steps, starts and order are our choice.

    Args:
        eps: Radius of the ball around x₀.
        steps: Steps per start.
        step: Length of a step, as in ``PGD``.
        relative: As in ``PGD``.
        stop: As in ``PGD``.
        candidates: How many of the highest other classes are tried.
        restarts: Random starts per class.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.LogitDifferenceAttack(eps=0.4)
        >>> ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).success.tolist()
        [True]
    """

    norms: ClassVar = PGD.norms
    cost: ClassVar = "1 forward per candidate, then 1 forward + 1 backward per step"
    reference: ClassVar = "Gupta 2018, MNIST challenge leaderboard"

    eps: float | None = None
    steps: int = 40
    step: float = 1 / 30
    relative: bool = True
    candidates: int = 9
    restarts: int = 1
    stop: bool = True

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        shared = {name: value for name, value in vars(self).items() if name != "candidates"}
        pgd = PGD(**shared, loss=MARGIN)
        for label in problem.highest_classes(problem.x0, most=self.candidates):
            pgd.deactivate_found(problem, radius)
            with problem.subproblem(targets=label) as towards:
                pgd.within(towards, radius, start)
