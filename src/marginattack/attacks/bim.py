"""BIM, also I-FGSM (Kurakin, Goodfellow, Bengio 2017): PGD that starts at the input itself."""

from dataclasses import dataclass
from typing import ClassVar, final

from marginattack.attacks.attack import Attack
from marginattack.attacks.pgd import PGD
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@final
@dataclass(frozen=True, kw_only=True)
class BIM(Attack):
    """Few, long steps from x₀ within ``eps``; the settings mean what they do in ``PGD``.

    Deviations: ``PGD``'s, and a norm other than ℓ∞, where the sign becomes that norm's steepest direction.
    """

    norms: ClassVar = PGD.norms
    cost: ClassVar = PGD.cost
    reference: ClassVar = "Kurakin, Goodfellow, Bengio 2017"

    eps: float = 0.3
    steps: int = 10
    step: float = 0.2
    relative: bool = True
    loss: Loss = CROSS_ENTROPY
    stop: bool = True

    def __call__(self, problem: Problem) -> None:
        self._pgd(problem)

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        """As ``PGD.within``."""
        self._pgd.within(problem, radius, start)

    @property
    def _pgd(self) -> PGD:
        return PGD(**vars(self), random=False)
