"""Attacks of other libraries under our counting and judging: ``peer("advlib:ddn")`` is an attack like any other."""

import warnings
from importlib import import_module

from marginattack.errors import InputError
from marginattack.integrations import advlib, foolbox, secml
from marginattack.integrations.guest import Guest as Guest
from marginattack.integrations.peer import Library as Library
from marginattack.integrations.peer import Peer as Peer
from marginattack.integrations.peer import Plan as Plan

LIBRARIES: dict[str, Library] = {"advlib": advlib.LIBRARY, "foolbox": foolbox.LIBRARY, "secml": secml.LIBRARY}
PEERS: dict[str, Peer] = {
    f"{short}:{name}": Peer(name=f"{short}:{name}", library=library, entry=entry)
    for short, library in LIBRARIES.items()
    for name, entry in library.entries.items()
}


def missing(name: str) -> str:
    """Why a peer cannot run here, in a line; empty where it can."""
    peer = PEERS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer.library.load()
            for module in peer.entry.needs:
                import_module(module)
    except (ImportError, RuntimeError) as error:
        return f"{peer.library.distribution} cannot be imported: {error}"
    return ""


def peer(name: str) -> Peer:
    """A peer by its name, ready to run."""
    if name not in PEERS:
        raise InputError(f"no peer named {name!r}: choose one of {', '.join(PEERS)}")
    if why := missing(name):
        raise InputError(f'{name}: {why}; pip install "marginattack[peers]"')
    return PEERS[name]
