"""Who takes part in the suite: our own attacks, the paper's MarginAttack, and every peer that there is an adapter for.

The adapters themselves are marginattack.peers; here is only the roster, and why somebody on it cannot run.
"""

from dataclasses import dataclass

from marginattack.analysis.benchmarking import contender, zero_confidence
from marginattack.attacks import Attack
from marginattack.errors import InputError
from marginattack.integrations import PEERS, missing

# Left out unless asked for: Boundary runs one sample at a time, a forward each, which takes hours for a budget of
# 2,000; JSMA and the one-pixel attack look for few pixels, not for a small distance.
ASIDE = ("boundary", "jsma", "one-pixel")


@dataclass(frozen=True)
class Absent:
    """A contender that cannot run, and why."""

    name: str
    reason: str


def presets(norm: str, data: str) -> list[str]:
    """The paper's settings for this data and norm; for ℓ1 and for other data there are none."""
    from marginattack.attacks.presets import PRESETS

    return [f"preset:{name}" for name in (f"{data}-{norm}",) if name in PRESETS]


def roster(norm: str, data: str, *, aside: bool = False) -> list[str]:
    """The names of all contenders under a norm; ``aside``: also those that are left out."""
    own = [name for name in zero_confidence(norm) if aside or name not in ASIDE]
    return [*own, *presets(norm, data), *(name for name, peer in PEERS.items() if norm in peer.entry.norms)]


def enlist(name: str, budget: int) -> Attack | Absent:
    """The contender with its settings for a budget, or why it cannot run."""
    if name in PEERS and (why := missing(name)):
        return Absent(name, why)
    try:
        return contender(name, budget)
    except InputError as refusal:
        return Absent(name, str(refusal))
