r"""APGD (Croce, Hein 2020): projected steepest descent with momentum, whose step is halved where it stops to help.

.. math:: \min_x L(x) \;\; \text{s.t.} \;\; \|x - x_0\| \le \epsilon, \; x \in box, \qquad
    z = \Pi(x - \eta \, s), \quad x^+ = \Pi(x + \alpha (z - x) + (1 - \alpha) (x - x^-))

with the steepest direction s of L, η = 2ε at first and α = 0.75.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from marginattack.attacks.pgd import FixedRadiusAttack, into_ball, random_point
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars

FIRST, SHORTER, SHORTEST = 0.22, 0.03, 0.06  # shares of the steps: to the first checkpoint, less to each next, at least


@final
@dataclass(frozen=True, kw_only=True)
class APGD(FixedRadiusAttack):
    """Descent without a step size to choose: at checkpoints the step of a sample is halved, and it returns to its best.

    That happens where at most a share ρ of the steps since the last checkpoint lowered the loss, or where neither the
    step nor the least loss has changed since then. With ``candidates`` the attack runs towards each of the highest
    other classes in turn, like AutoAttack's APGD-T.

    Deviations: random starts are drawn from the ball, not its surface; towards a class, DLR compares it with the
    highest other class instead of the true one, and only points of that class count; every iterate counts. ℓ1, for
    which the authors have another step, is left out.

    Args:
        eps: Radius of the ball around x₀.
        steps: Steps per start.
        loss: What is minimised: ``CROSS_ENTROPY`` (APGD-CE), ``DLR`` (APGD-DLR), ``TARGETED_DLR`` (APGD-T, with
            ``candidates``), or another of ``marginattack.core.losses``.
        candidates: Classes to run towards; 0: away from the true class, or towards the target of the problem.
        rho: ρ
        momentum: α
        restarts: Random starts, per class.
        stop: Whether a sample ends at its first adversarial point, at any distance up to ``eps``.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.APGD(eps=0.4, steps=20)
        >>> ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).success.tolist()
        [True]
    """

    norms: ClassVar = ("l2", "linf")
    cost: ClassVar = "1 forward + 1 backward per step; 1 forward to choose candidates"
    reference: ClassVar = "Croce, Hein 2020"

    eps: float | None = None
    steps: int = 100
    loss: Loss = CROSS_ENTROPY
    candidates: int = 0
    rho: float = 0.75
    momentum: float = 0.75
    restarts: int = 1
    stop: bool = True

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        if self.candidates:
            for label in problem.highest_classes(problem.x0, most=self.candidates):
                self.deactivate_found(problem, radius)
                with problem.subproblem(targets=label) as towards:
                    self.run_starts(towards, radius, start)
        else:
            self.run_starts(problem, radius, start)

    def run_starts(self, problem: Problem, radius: Scalars, start: Points | None) -> None:
        """Descend from every start."""
        points = [random_point(problem, radius) for _ in range(self.restarts)]
        for x in points if start is None else [start, *points[1:]]:
            self.descend(problem, x, radius)

    def descend(self, problem: Problem, x: Points, radius: Scalars) -> None:
        """Run the descent from x."""
        f, g = problem.value_and_gradient(x, loss=self.loss)
        x_best, f_best, g_best, f_checked, before = x, f, g, f, x
        step, lowered, reduced = 2 * radius, torch.zeros_like(f), torch.ones_like(f, dtype=torch.bool)
        a, since, checkpoints = 1.0, 0, self.checkpoints()
        for k in range(1, self.steps + 1):
            self.deactivate_found(problem, radius)
            z = into_ball(problem, x - step * problem.norm.steepest(g), radius)
            x, before = into_ball(problem, x + a * (z - x) + (1 - a) * (x - before), radius), x
            f_before, a, since = f, self.momentum, since + 1
            f, g = problem.value_and_gradient(x, loss=self.loss)
            lowered = lowered + (f < f_before)
            better = f < f_best
            x_best, f_best, g_best = (
                torch.where(better, new, old) for new, old in ((x, x_best), (f, f_best), (g, g_best))
            )
            if k in checkpoints:
                reduced = (lowered <= self.rho * since) | (~reduced & (f_checked <= f_best))
                x, f, g = (torch.where(reduced, new, old) for new, old in ((x_best, x), (f_best, f), (g_best, g)))
                step, f_checked, lowered, since = torch.where(reduced, step / 2, step), f_best, torch.zeros_like(f), 0
        self.deactivate_found(problem, radius)

    def checkpoints(self) -> set[int]:
        """The steps after which progress is judged."""
        length, least = (max(1, int(share * self.steps)) for share in (FIRST, SHORTEST))
        found, at = set[int](), length
        while at <= self.steps:
            found.add(at)
            length = max(length - max(1, int(SHORTER * self.steps)), least)
            at += length
        return found
