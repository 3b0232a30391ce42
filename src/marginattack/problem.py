"""Deprecated: use ``marginattack.Problem``."""

from marginattack._deprecation import renamed

__getattr__ = renamed(__name__, {"Problem": "marginattack:Problem"})
