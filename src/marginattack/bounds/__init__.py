"""Certified lower bounds of margins, evidence of optimality, and CLEVER, an estimate."""

from marginattack.bounds.brackets import Brackets as Brackets
from marginattack.bounds.clever import Clever as Clever
from marginattack.bounds.clever import clever as clever
from marginattack.bounds.optimality import kkt_residual as kkt_residual
from marginattack.bounds.propagation import METHODS as METHODS
from marginattack.bounds.propagation import Relaxation as Relaxation
from marginattack.bounds.search import bound as bound
