"""How far is each input from the decision boundary of this classifier?"""

from typing import Any

from marginattack._version import __version__
from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.marginattack import MarginAttack
from marginattack.attacks.presets import preset
from marginattack.attacks.race import Race
from marginattack.core.classifier import Classifier, TwoClass
from marginattack.core.norms import L0, L1, L2, LINF, Norm
from marginattack.core.problem import Problem
from marginattack.errors import InputError, MarginAttackError
from marginattack.margins import Margins
from marginattack.measure import measure

__all__ = [
    "ATTACKS", "L0", "L1", "L2", "LINF", "Attack", "Classifier", "InputError", "MarginAttack", "MarginAttackError",
    "Margins", "Norm", "Problem", "Race", "TwoClass", "__version__", "measure", "preset",
]  # fmt: skip

_DEPRECATED = {"Refused": "InputError"}


def __getattr__(name: str) -> Any:
    if name not in _DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    new = _DEPRECATED[name]
    warnings.warn(f"marginattack.{name} is deprecated: use marginattack.{new}", DeprecationWarning, stacklevel=2)
    return globals()[new]
