"""The attacks, by name: each a frozen dataclass of settings that is called on a Problem."""

from marginattack.attacks.attack import Attack as Attack
from marginattack.attacks.marginattack import MarginAttack as MarginAttack

ATTACKS: dict[str, type[Attack]] = {
    "marginattack": MarginAttack,
}
