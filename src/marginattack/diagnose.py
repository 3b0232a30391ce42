"""Deprecated: use ``marginattack.analysis.diagnose``."""

from marginattack._deprecation import renamed

__getattr__ = renamed(__name__, {"preflight": "marginattack.analysis.diagnose:preflight"})
