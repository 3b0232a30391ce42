"""What every attack is."""

from abc import ABC, abstractmethod
from typing import ClassVar

from marginattack.core.problem import Problem


class Attack(ABC):
    """Looks at a problem until it has nothing more to ask; what was found is the problem's to keep."""

    norms: ClassVar[tuple[str, ...]]  # the norms that it makes sense for
    cost: ClassVar[str]  # passes a step, as "1 forward + 1 backward"
    reference: ClassVar[str]

    @abstractmethod
    def __call__(self, problem: Problem) -> None: ...
