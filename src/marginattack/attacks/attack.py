"""The interface of an attack."""

from abc import ABC, abstractmethod
from typing import ClassVar

from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.errors import InputError


class Attack(ABC):
    """The settings of an attack, as a frozen dataclass; calling it with a problem runs the attack.

    The problem charges the budget and keeps the nearest adversarial point of each sample (docs/add-an-attack.md).

    Example:
        >>> import marginattack as ma
        >>> attack = ma.ATTACKS["fgsm"]()
        >>> isinstance(attack, ma.Attack), attack.norms
        (True, ('l0', 'l1', 'l2', 'linf'))
    """

    norms: ClassVar[tuple[str, ...]]  # names of the supported norms
    cost: ClassVar[str]  # passes per step, such as "1 forward + 1 backward"
    reference: ClassVar[str]  # authors and year

    def check_norm(self, norm: Norm) -> None:
        """Raise InputError unless the attack supports this norm."""
        require_norm(norm, self.norms, type(self).__name__)

    @abstractmethod
    def __call__(self, problem: Problem) -> None: ...


def require_norm(norm: Norm, supported: tuple[str, ...], who: str) -> None:
    """Raise InputError unless the norm is among those that are supported."""
    if str(norm) not in supported:
        raise InputError(f"{who} supports {', '.join(supported)}, not {norm}: choose another norm or attack")
