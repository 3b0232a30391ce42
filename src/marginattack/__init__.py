"""How far is each input from the decision boundary of this classifier?"""

from marginattack.attacks import ATTACKS as ATTACKS
from marginattack.attacks.marginattack import MarginAttack as MarginAttack
from marginattack.attacks.presets import preset as preset
from marginattack.attacks.race import Race as Race
from marginattack.classifier import Classifier as Classifier
from marginattack.classifier import Refused as Refused
from marginattack.classifier import TwoClass as TwoClass
from marginattack.margins import Margins as Margins
from marginattack.measure import measure as measure
from marginattack.norms import L0 as L0
from marginattack.norms import L1 as L1
from marginattack.norms import L2 as L2
from marginattack.norms import LINF as LINF
from marginattack.norms import Norm as Norm
from marginattack.problem import Problem as Problem

__version__ = "0.1.0"
