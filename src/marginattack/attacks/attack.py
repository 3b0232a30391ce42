"""The interface of an attack."""

from abc import ABC, abstractmethod
from typing import ClassVar

from marginattack.core.norms import Norm, is_bundled
from marginattack.core.problem import Problem
from marginattack.errors import InputError

LOW_PRECISION_PASSES = 400  # of a search for the nearest point; what changes then is in docs/speed.md


class Attack(ABC):
    """The settings of an attack, as a frozen dataclass; calling it with a problem runs the attack.

    The problem charges the budget and keeps the nearest adversarial point of each sample (docs/add-an-attack.md).

    Attributes:
        norms: Names of the norms that it supports.
        any_norm: Whether it supports norms of other packages too, since it only uses the interface of ``Norm``.
        cost: Passes per step, such as "1 forward + 1 backward".
        reference: Authors and year.
        needs_gradient: Whether it finds nothing on a model without gradients, which ``measure`` then refuses.

    Example:
        >>> import torch, marginattack as ma
        >>> class HalfWay(ma.Attack):
        ...     norms, cost, reference = ("l2",), "1 forward", "this example"
        ...     def __call__(self, problem):
        ...         problem.value((problem.x0 + problem.box.hi) / 2)
        >>> ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], "l2", attack=HalfWay()).success
        tensor([False])
    """

    norms: ClassVar[tuple[str, ...]]
    any_norm: ClassVar[bool] = False
    cost: ClassVar[str]
    reference: ClassVar[str]
    needs_gradient: ClassVar[bool] = True

    def check_norm(self, norm: Norm) -> None:
        """Raise InputError unless the attack supports this norm."""
        if not self.any_norm or is_bundled(norm):
            require_norm(norm, self.norms, type(self).__name__)

    def low_precision(self, norm: Norm, budget: int | None) -> bool:
        """Whether results stay the same if the precision of its search is chosen for speed (docs/speed.md)."""
        return False

    @abstractmethod
    def __call__(self, problem: Problem) -> None: ...


def keeps_margins(norm: Norm, passes: int) -> bool:
    """Whether a search for the nearest point in 16 bits was measured to hardly change margins."""
    return norm.tolerates_rounding and passes >= LOW_PRECISION_PASSES


def require_norm(norm: Norm, supported: tuple[str, ...], who: str) -> None:
    """Raise InputError unless the norm is supported."""
    if str(norm) not in supported:
        raise InputError(f"{who} supports {', '.join(supported)}, not {norm}: choose another norm or attack")
