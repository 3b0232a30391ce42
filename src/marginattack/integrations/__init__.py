"""Attacks of other libraries, counted and verified like our own: ``external_attack("advlib:ddn")`` is an Attack."""

from marginattack.errors import InputError
from marginattack.integrations import advlib, foolbox, secml
from marginattack.integrations.external import ExternalAttack

EXTERNAL_ATTACKS: dict[str, ExternalAttack] = {
    attack.name: attack for attack in (*advlib.ATTACKS, *foolbox.ATTACKS, *secml.ATTACKS)
}


def external_attack(name: str) -> ExternalAttack:
    """Look up an attack of another library.

    Args:
        name: ``LIBRARY:ATTACK``, a key of ``EXTERNAL_ATTACKS``, such as ``"advlib:ddn"`` or ``"foolbox:fmn"``.

    Returns:
        The attack, to be passed to ``measure(attack=…)``.

    Raises:
        InputError: If there is no attack of that name, or its library cannot be imported.

    Example:
        >>> external_attack("foolbox:ddn").supported_norms
        ('l2',)
    """
    if name not in EXTERNAL_ATTACKS:
        raise InputError(f"no external attack named {name!r}: choose one of {', '.join(EXTERNAL_ATTACKS)}")
    if reason := EXTERNAL_ATTACKS[name].why_unavailable():
        raise InputError(f'{name}: {reason}; pip install "marginattack[peers]"')
    return EXTERNAL_ATTACKS[name]
