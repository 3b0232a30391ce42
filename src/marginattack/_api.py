"""The names of the public API. ``marginattack`` loads this module at the first use of one of them."""

from marginattack.attacks import ATTACKS as ATTACKS
from marginattack.attacks.marginattack import MarginAttack as MarginAttack
from marginattack.attacks.presets import preset as preset
from marginattack.attacks.race import Race as Race
from marginattack.core.classifier import Classifier as Classifier
from marginattack.core.classifier import TwoClass as TwoClass
from marginattack.core.norms import L0 as L0
from marginattack.core.norms import L1 as L1
from marginattack.core.norms import L2 as L2
from marginattack.core.norms import LINF as LINF
from marginattack.core.norms import Norm as Norm
from marginattack.core.problem import Problem as Problem
from marginattack.errors import InputError as InputError
from marginattack.errors import MarginAttackError as MarginAttackError
from marginattack.margins import Margins as Margins
from marginattack.measure import measure as measure
