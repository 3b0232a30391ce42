"""Attacks by name, ours and those of other libraries. Attacks within a radius take it after an @: square@8/255."""

from collections.abc import Iterable
from dataclasses import replace

from marginattack.attacks import ATTACKS
from marginattack.attacks.attack import Attack
from marginattack.attacks.external import EXTERNAL_ATTACKS, external_attack, parse_radius
from marginattack.attacks.pgd import FixedRadiusAttack
from marginattack.errors import InputError, choose_attack


def named_attack(name: str, also: Iterable[str] = ()) -> Attack:
    """The attack of this name with its defaults; ``also`` are further names to suggest for an unknown one."""
    base, at, _ = name.partition("@")
    if base in EXTERNAL_ATTACKS:
        return external_attack(name)
    if base not in ATTACKS:
        raise InputError(f"no attack named {name!r}: {choose_attack(name, [*ATTACKS, *also, *EXTERNAL_ATTACKS])}")
    attack = ATTACKS[base]()
    if not at:
        return attack
    eps = parse_radius(name, within=isinstance(attack, FixedRadiusAttack))
    return replace(attack, eps=eps)  # type: ignore[type-var]
