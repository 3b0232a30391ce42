"""Deprecated: use ``marginattack.integrations``."""

from marginattack._deprecation import renamed

__getattr__ = renamed(__name__, {"peer": "marginattack.integrations:external_attack"})
