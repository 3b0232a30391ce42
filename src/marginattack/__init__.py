"""How far is each input from the decision boundary of this classifier?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from marginattack._deprecation import renamed
from marginattack._version import __version__

if TYPE_CHECKING:
    from marginattack.analysis.comparison import compare
    from marginattack.attacks import ATTACKS, Attack
    from marginattack.attacks.marginattack import MarginAttack
    from marginattack.attacks.presets import preset
    from marginattack.attacks.race import Race
    from marginattack.bounds.brackets import Brackets
    from marginattack.bounds.search import bound
    from marginattack.core.classifier import Classifier, TwoClass
    from marginattack.core.norms import L0, L1, L2, LINF, Norm
    from marginattack.core.problem import Problem
    from marginattack.core.randomized import Randomized
    from marginattack.errors import DiagnosisWarning, InputError, MarginAttackError
    from marginattack.evaluation import Evaluation, evaluate
    from marginattack.margins import Margins
    from marginattack.measuring import measure

__all__ = [
    "ATTACKS", "L0", "L1", "L2", "LINF", "Attack", "Brackets", "Classifier", "DiagnosisWarning", "Evaluation",
    "InputError",
    "MarginAttack", "MarginAttackError", "Margins", "Norm", "Problem", "Race", "Randomized", "TwoClass",
    "__version__", "bound", "compare", "evaluate", "measure", "preset",
]  # fmt: skip

# Names are loaded at first use, so that `marginattack --help` does not import torch.
_MODULES = {
    "analysis.comparison": ("compare",),
    "attacks": ("ATTACKS", "Attack"), "attacks.marginattack": ("MarginAttack",), "attacks.presets": ("preset",),
    "attacks.race": ("Race",), "bounds.brackets": ("Brackets",), "bounds.search": ("bound",),
    "core.classifier": ("Classifier", "TwoClass"), "core.norms": ("L0", "L1", "L2", "LINF", "Norm"),
    "core.problem": ("Problem",), "core.randomized": ("Randomized",),
    "errors": ("DiagnosisWarning", "InputError", "MarginAttackError"), "margins": ("Margins",),
    "evaluation": ("Evaluation", "evaluate"),
    "measuring": ("measure",),
}  # fmt: skip
_PACKAGES = ("attacks", "bounds", "core", "integrations")
_renamed = renamed(__name__, {"Refused": "marginattack:InputError"}, stacklevel=3)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"marginattack.{name}")
    for module, names in _MODULES.items():
        if name in names:
            globals()[name] = getattr(import_module(f"marginattack.{module}"), name)
            return globals()[name]
    return _renamed(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
