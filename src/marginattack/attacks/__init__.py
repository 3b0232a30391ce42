"""The attacks by name; other packages add theirs through the entry-point group ``marginattack.attacks``."""

from collections.abc import Mapping

from marginattack.attacks.apgd import APGD as APGD
from marginattack.attacks.attack import Attack as Attack
from marginattack.attacks.bim import BIM as BIM
from marginattack.attacks.boundary import Boundary as Boundary
from marginattack.attacks.carlini_wagner import CarliniWagner as CarliniWagner
from marginattack.attacks.daa import DAA as DAA
from marginattack.attacks.deepfool import DeepFool as DeepFool
from marginattack.attacks.fgsm import FGSM as FGSM
from marginattack.attacks.jsma import JSMA as JSMA
from marginattack.attacks.lbfgs import LBFGS as LBFGS
from marginattack.attacks.logit_difference import LogitDifferenceAttack as LogitDifferenceAttack
from marginattack.attacks.marginattack import MarginAttack as MarginAttack
from marginattack.attacks.one_pixel import OnePixel as OnePixel
from marginattack.attacks.pgd import PGD as PGD
from marginattack.attacks.race import Race as Race
from marginattack.attacks.search import Search as Search
from marginattack.attacks.square import Square as Square
from marginattack.core.plugins import Registry

ATTACKS: Mapping[str, type[Attack]] = {
    "race": Race,
    "marginattack": MarginAttack,
    "fgsm": FGSM,
    "bim": BIM,
    "pgd": PGD,
    "search": Search,
    "daa": DAA,
    "logit-difference": LogitDifferenceAttack,
    "deepfool": DeepFool,
    "cw": CarliniWagner,
    "lbfgs": LBFGS,
    "jsma": JSMA,
    "one-pixel": OnePixel,
    "boundary": Boundary,
    "apgd": APGD,
    "square": Square,
}
ATTACKS = Registry("marginattack.attacks", ATTACKS)
