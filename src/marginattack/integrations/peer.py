"""What a peer is: an attack of another library, with its authors' settings for the passes that it may spend."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.problem import UNBOUNDED, Problem
from marginattack.errors import InputError
from marginattack.integrations.guest import Guest

USUAL = 2000  # passes that the settings are chosen for where no budget is given


class Plan(NamedTuple):
    """What the settings of a peer are chosen by."""

    norm: str
    passes: int  # the budget
    classes: int
    samples: int  # in the batch
    grey: bool  # one channel, as digits have

    @property
    def steps(self) -> int:
        """Of one forward and one backward."""
        return max(2, self.passes // 2)

    @property
    def searches(self) -> int:
        """Levels of a bisection, more as its steps grow in number: 5, 8 and 15 for 100, 400 and 2,000 passes."""
        return max(2, int(self.passes**0.36))


Settings = Mapping[str, Any]
Run = Callable[[Any, str, Settings, Guest, Plan], Tensor]


class Entry(NamedTuple):
    """One attack of a library: the name that it is called by, the norms that it is run for, and its settings."""

    call: str
    norms: tuple[str, ...]
    settings: Callable[[Plan], dict[str, Any]]
    needs: tuple[str, ...] = ()  # modules beyond the library's own


@dataclass(frozen=True, kw_only=True)
class Library:
    """Attacks of one library, and how they are called."""

    distribution: str
    load: Callable[[], Any]  # the module that holds the attacks; ImportError where it is missing
    run: Run = field(repr=False)
    entries: dict[str, Entry] = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True)
class Peer(Attack):
    """An attack of another library on the problem, all samples in one batch.

    Its random draws are torch's, seeded from the problem's seed and put back afterwards: they depend on the batch.
    """

    norms: ClassVar = ("l1", "l2", "linf")
    cost: ClassVar = "its own"
    reference: ClassVar = "its library's"

    name: str
    library: Library
    entry: Entry = field(repr=False)

    def settings(self, plan: Plan) -> dict[str, Any]:
        """The authors' settings, steps chosen so that the budget is used."""
        if plan.norm not in self.entry.norms:
            raise InputError(
                f"{self.name} is made for {', '.join(self.entry.norms)}, not {plan.norm}: choose another norm"
            )
        return self.entry.settings(plan)

    def __call__(self, problem: Problem) -> None:
        if problem.targeted:
            raise InputError(f"{self.name} is run untargeted: leave out the targets")
        problem.need_walls(self.name)
        guest, plan = Guest(problem), plan_of(problem)
        settings, module = self.settings(plan), self.library.load()
        devices = [problem.x0.device] if problem.x0.is_cuda else []
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what other libraries say of themselves is no finding of ours
            torch.manual_seed(problem.seed)
            guest.offer(self.library.run(module, self.entry.call, settings, guest, plan))


def plan_of(problem: Problem, budget: int | None = None) -> Plan:
    """What there is to spend, and on what; a budget may be stated for a problem that has spent some."""
    passes = budget or (problem.left if problem.left < UNBOUNDED else USUAL)
    grey = len(problem.shape) < 3 or problem.shape[0] == 1
    return Plan(problem.norm.name, passes, problem.classifier.classes, len(problem.x0), grey)
