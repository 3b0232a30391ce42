"""Attacks as the experiments run them: with a search in tf32, or with CW's searches in several stages."""

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.attacks.carlini_wagner import PENALTIES, CarliniWagner
from marginattack.core.problem import Problem
from marginattack.errors import InputError

TF32_NOTE = ", searched in tf32"


@final
@dataclass(frozen=True, kw_only=True)
class LowPrecision(Attack):
    """``attack`` with all queries in the precision of the search; its points are confirmed in float32.

    With ``measure(precision="tf32")`` it is about twice as fast on a GPU.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "the attack's"
    reference: ClassVar = "the attack's"

    attack: Attack

    def __call__(self, problem: Problem) -> None:
        with problem.for_search() as search:
            self.attack(search)


@final
@dataclass(frozen=True, kw_only=True)
class ResumedCW(Attack):
    """``searches`` further searches of ``attack``; ``state`` holds the multipliers of earlier ones and is updated.

    An ℓ2 search depends on earlier ones only through its multiplier, so the best of 3, then 2, then 5 searches is the
    best of a run with 10, and the best of the first 3 is that of a run with 3.
    """

    norms: ClassVar = ("l2",)
    cost: ClassVar = CarliniWagner.cost
    reference: ClassVar = CarliniWagner.reference

    attack: CarliniWagner
    searches: int
    state: dict[str, Tensor] = field(repr=False)

    def __call__(self, problem: Problem) -> None:
        start = torch.full_like(problem.incumbent.distance, self.attack.initial * PENALTIES[problem.norm].unit)
        m = self.state.get("m", start)
        lower, upper = self.state.get("lower", torch.zeros_like(m)), self.state.get("upper", m + torch.inf)
        if m.shape != start.shape:
            raise InputError(f"the state has {len(m)} multipliers for {len(start)} samples: resume with the same batch")
        for _ in range(self.searches):
            found, _ = self.attack.descend(problem, m, problem.x0)
            lower, upper = torch.where(found, lower, m), torch.where(found, m, upper)
            m = torch.where(torch.isfinite(upper), (lower + upper) / 2, 10 * m)
        self.state.update(m=m, lower=lower, upper=upper)
