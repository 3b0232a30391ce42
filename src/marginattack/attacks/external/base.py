"""Attacks of other libraries, with the settings that their authors recommend for the given budget."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import Any, ClassVar, NamedTuple, final

from torch import Tensor

from marginattack.attacks.attack import Attack, require_norm
from marginattack.attacks.external.problem_module import ProblemModule
from marginattack.core.box import Box
from marginattack.core.norms import Norm, as_norm
from marginattack.core.problem import Problem
from marginattack.core.sharing import seeded
from marginattack.errors import InputError

DEFAULT_BUDGET = 2000  # passes for which settings are chosen without a budget


class ProblemInfo(NamedTuple):
    """The properties of a problem that the settings of an external attack depend on."""

    norm: str
    budget: int  # passes per sample
    classes: int
    grayscale: bool  # one channel
    eps: float | None = None  # the fixed radius, or the largest one for an attack that bisects it

    @classmethod
    def of(cls, problem: Problem, budget: int | None = None) -> "ProblemInfo":
        """Describe a problem; ``budget`` defaults to what is left of the problem's own."""
        budget = budget or (problem.budget.remaining if problem.budget.limited else DEFAULT_BUDGET)
        grayscale = len(problem.shape) < 3 or problem.shape[0] == 1
        return cls(problem.norm.name, budget, problem.evaluator.classes, grayscale)

    @property
    def p(self) -> int | float:
        """The order of the norm."""
        return {"l0": 0, "l1": 1, "l2": 2, "linf": inf}[self.norm]

    @property
    def steps(self) -> int:
        """Steps of one forward and one backward."""
        return max(2, self.budget // 2)


@final
@dataclass(frozen=True)
class ExternalAttack(Attack):
    """An attack of another library, all samples in one batch; its draws are torch's and so depend on the batch."""

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "set by the library"
    reference: ClassVar = "its library's"

    name: str  # LIBRARY:ATTACK
    function: str  # the function or class of the library
    supported_norms: tuple[str, ...]
    choose_settings: Callable[[ProblemInfo], dict[str, Any]] = field(repr=False)
    distribution: str  # the library and its version
    load: Callable[[], Any] = field(repr=False)  # import the library; raises ImportError if it is missing
    run: Callable[[str, dict[str, Any], ProblemModule], Tensor] = field(repr=False)  # call the function; its points
    requires: tuple[str, ...] = ()  # modules beyond the library's own
    eps: float | None = None  # the radius within which it searches; None: it minimises the distance
    gradient_free: bool = field(default=False, repr=False)

    @property
    def needs_gradient(self) -> bool:  # type: ignore[override]
        """Whether it fails on a model without gradients."""
        return not self.gradient_free

    def installed(self) -> bool:
        """Whether the library is installed; importing it may still fail."""
        try:
            return bool(version(self.distribution.rpartition(" ")[0]))
        except PackageNotFoundError:
            return False

    def why_unavailable(self) -> str:
        """Why the attack cannot run here; empty if it can."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.load()
                for module in self.requires:
                    import_module(module)
        except (ImportError, RuntimeError) as error:
            return f"{self.distribution} cannot be imported: {error}"
        return ""

    def check_norm(self, norm: Norm) -> None:
        require_norm(norm, self.supported_norms, self.name)

    def settings(self, info: ProblemInfo) -> dict[str, Any]:
        """The authors' settings, with as many steps as the budget allows."""
        self.check_norm(as_norm(info.norm))
        return self.choose_settings(info._replace(eps=self.eps))

    def describe(self, info: ProblemInfo) -> str:
        """The call with its settings for this problem."""
        settings = ", ".join(f"{key}={value}" for key, value in self.settings(info).items())
        return f"{self.distribution}: {self.function}({settings})"

    def __call__(self, problem: Problem) -> None:
        if problem.targeted:
            raise InputError(f"{self.name} supports untargeted problems only: omit the targets")
        require_uniform_box(problem.box, self.name)
        model = ProblemModule(problem)
        inside = self if self.eps is None else replace(self, eps=self.eps / model.width)
        settings = inside.settings(ProblemInfo.of(problem))
        with seeded(problem.draws.seed, problem.x0.device):  # also silences warnings of the library
            model.submit(self.run(self.function, settings, model))


def require_uniform_box(box: Box, who: str) -> None:
    """Raise InputError unless all features have the same finite bounds, in units of the scale."""
    box.require_finite(who)
    if bool((box.lo != box.lo.min()).any() or (box.hi != box.hi.max()).any()):
        given = "leave out fixed, and bounds and scale per feature, or choose an attack of marginattack's own"
        raise InputError(f"{who} supports the same bounds for all features only: {given}")


def fmn_variants(
    attack: Callable[..., ExternalAttack], prefix: str, function: str, settings: Callable[[ProblemInfo, float], Any]
) -> list[ExternalAttack]:
    """FMN with an initial step of 1, as AttackBench, and for ℓ∞ with 10, as its authors, and 0.5."""
    variants = (("fmn", 1.0, ("l1", "l2")), ("fmn-10", 10.0, ("linf",)), ("fmn-0.5", 0.5, ("linf",)))
    return [
        attack(f"{prefix}:{name}", function, norms, lambda info, step=step: settings(info, step))
        for name, step, norms in variants
    ]
