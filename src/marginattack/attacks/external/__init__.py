"""Attacks of other libraries, counted and verified like our own: ``external_attack("advlib:ddn")`` is an Attack."""

from dataclasses import replace
from fractions import Fraction
from math import inf, nan

from marginattack.attacks.external import advlib, art, foolbox, pyautoattack, secml, torchattacks
from marginattack.attacks.external.base import ExternalAttack
from marginattack.errors import InputError, choose_attack

EXTERNAL_ATTACKS: dict[str, ExternalAttack] = {
    attack.name: attack
    for library in (advlib, foolbox, secml, pyautoattack, torchattacks, art)
    for attack in library.ATTACKS
}

# Libraries that cannot be installed with what they require: adv-lib's visdom cannot be built with a recent setuptools,
# torchattacks needs a version of requests from 2021. Their attacks use neither.
NO_DEPENDENCIES = {"advlib": "--no-deps adv-lib==0.2.8 tqdm", "torchattacks": "--no-deps torchattacks==3.5.1"}


def external_attack(name: str) -> ExternalAttack:
    """Look up an attack of another library.

    Args:
        name: ``LIBRARY:ATTACK``, a key of ``EXTERNAL_ATTACKS``, such as ``"advlib:ddn"`` or ``"foolbox:fmn"``. Attacks
            within a fixed radius, those of AutoAttack, take it behind an @: ``"autoattack:standard@0.3"``.

    Returns:
        The attack, to be passed to ``measure(attack=…)``.

    Raises:
        InputError: If there is no attack of that name, its library cannot be imported, or the radius makes no sense.

    Example:
        >>> external_attack("foolbox:ddn").supported_norms
        ('l2',)
    """
    base, at, _ = name.partition("@")
    if base not in EXTERNAL_ATTACKS:
        raise InputError(f"no external attack named {base!r}: {choose_attack(base, EXTERNAL_ATTACKS)}")
    attack = EXTERNAL_ATTACKS[base]
    if reason := attack.why_unavailable():
        install = NO_DEPENDENCIES.get(base.partition(":")[0], '"marginattack[peers]"')
        raise InputError(f"{base}: {reason}; pip install {install}")
    within = attack.eps is not None
    return replace(attack, eps=parse_radius(name, within=within)) if at or within else attack


def parse_radius(name: str, *, within: bool) -> float:
    """The number behind the @ of a name; InputError unless the attack searches within a radius and this is one."""
    base, _, radius = name.partition("@")
    try:
        eps = float(Fraction(radius))
    except (ValueError, ZeroDivisionError, OverflowError):
        eps = nan
    if not within or not 0 < eps < inf:
        reason = "needs a radius above 0" if within else "minimises the distance: omit the radius"
        raise InputError(f"{name}: {base} {reason}, as in {base}{'@0.3' if within else ''}")
    return eps
