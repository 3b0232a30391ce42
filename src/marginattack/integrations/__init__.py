"""Other libraries: their attacks here, ``external_attack("advlib:ddn")``; ours there, one module per library."""

from importlib import import_module
from typing import Any

from marginattack.attacks.external import EXTERNAL_ATTACKS as EXTERNAL_ATTACKS
from marginattack.attacks.external import external_attack as external_attack

_MODULES = (
    "attackbench", "autoattack", "foolbox", "lightning", "maite", "pyautoattack", "robustbench", "torchattacks",
    "training",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """The module of a library, imported at first use: ``ma.integrations.autoattack``."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
