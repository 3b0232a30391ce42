"""BIM, also I-FGSM (Kurakin, Goodfellow, Bengio 2017): PGD that starts at the input itself."""

from dataclasses import dataclass
from typing import ClassVar, final

from marginattack.attacks.pgd import PGD, FixedRadiusAttack
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@final
@dataclass(frozen=True, kw_only=True)
class BIM(FixedRadiusAttack):
    """A few long steps from x₀ within a fixed radius.

    Deviations: those of ``PGD``; in norms other than ℓ∞, the norm's steepest direction replaces the sign.

    Args:
        eps: Radius of the ball around x₀.
        steps: Number of steps.
        step: Length of a step, as in ``PGD``.
        relative: As in ``PGD``.
        loss: As in ``PGD``.
        stop: As in ``PGD``.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.BIM(eps=0.4)
        >>> ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).success.tolist()
        [True]
    """

    norms: ClassVar = PGD.norms
    cost: ClassVar = PGD.cost
    reference: ClassVar = "Kurakin, Goodfellow, Bengio 2017"

    eps: float | None = None
    steps: int = 10
    step: float = 0.2
    relative: bool = True
    loss: Loss = CROSS_ENTROPY
    stop: bool = True

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        PGD(**vars(self), random=False).within(problem, radius, start)
