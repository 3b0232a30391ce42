"""CW in stages: some searches for the multiplier now, some later, from where the first ones left it."""

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.attacks.carlini_wagner import PENALTIES, CarliniWagner
from marginattack.core.problem import Problem
from marginattack.errors import InputError


@final
@dataclass(frozen=True, kw_only=True)
class Continued(Attack):
    """``more`` searches of ``attack``, after those that ``memory`` tells of; it is brought up to date.

    An ℓ2 search depends on those before it through its multiplier alone, so that the best of 3, then 2, then 5
    searches is the best of a run with 10, and the best of the first 3 is that of a run with 3.
    """

    norms: ClassVar = ("l2",)
    cost: ClassVar = CarliniWagner.cost
    reference: ClassVar = CarliniWagner.reference

    attack: CarliniWagner
    more: int
    memory: dict[str, Tensor] = field(repr=False)

    def __call__(self, problem: Problem) -> None:
        start = torch.full_like(problem.distance, self.attack.initial * PENALTIES[problem.norm].unit)
        m = self.memory.get("m", start)
        lower, upper = self.memory.get("lower", torch.zeros_like(m)), self.memory.get("upper", m + torch.inf)
        if m.shape != start.shape:
            raise InputError(f"{len(m)} multipliers are kept for {len(start)} samples: continue with the same batch")
        for _ in range(self.more):
            found = self.attack.descend(problem, m)
            lower, upper = torch.where(found, lower, m), torch.where(found, m, upper)
            m = torch.where(torch.isfinite(upper), (lower + upper) / 2, 10 * m)
        self.memory.update(m=m, lower=lower, upper=upper)
