"""Estimates and bounds of how near the decision boundary can be."""

from marginattack.bounds.clever import Clever as Clever
from marginattack.bounds.clever import clever as clever
