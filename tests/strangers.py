"""An attack from elsewhere, made up by a test."""

from collections.abc import Callable

from torch import Tensor

from marginattack.integrations import Peer
from marginattack.integrations.guest import Guest
from marginattack.integrations.peer import Entry, Library


def stranger(run: Callable[[Guest], Tensor]) -> Peer:
    entry = Entry("attack", ("l2",), lambda plan: {})
    library = Library(
        distribution="made here", load=lambda: None, run=lambda module, call, settings, guest, plan: run(guest),
        entries={},
    )  # fmt: skip
    return Peer(name="stranger", library=library, entry=entry)
