"""Old names that still work, with a DeprecationWarning. Imports only the standard library."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def renamed(module: str, names: Mapping[str, str], stacklevel: int = 2) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that maps each old name to its new "module:name"."""

    def getattribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = names[name].partition(":")
        warnings.warn(f"{module}.{name} is deprecated: use {home}.{new}", DeprecationWarning, stacklevel)
        return getattr(import_module(home), new)

    return getattribute
