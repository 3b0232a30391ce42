"""How far is each input from the decision boundary of this classifier?"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from marginattack._version import __version__ as __version__

if TYPE_CHECKING:
    from marginattack._api import *  # noqa: F403


class _LazyPackage(ModuleType):
    """Loads the public API, and torch with it, at the first use of a name, so that the command line's help is fast."""

    def __getattr__(self, name: str) -> Any:
        api = vars(import_module("marginattack._api"))
        if name in api:
            return api[name]
        raise AttributeError(f"module 'marginattack' has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the module marginattack.measure must not hide the function of that name.
        if not (name == "measure" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *vars(import_module("marginattack._api"))})


sys.modules[__name__].__class__ = _LazyPackage
