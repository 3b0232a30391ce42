"""Attacks within 0.3 on the network that was trained against them (the paper's Table 3)."""

from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import DAA, PGD, LogitDifferenceAttack, MarginAttack, Race
from marginattack.attacks.presets import preset
from marginattack.core.losses import MARGIN
from marginattack.reproduce import paper
from marginattack.reproduce.rows import Outcome, Row, plain
from marginattack.reproduce.tables import OURS, beside, hits

RACE = "Race, 4,000 passes"  # the default of measure(), with less than half of what the attacks within 0.3 may spend
LONG = "MarginAttack, 50 starts of 500 moves, ours"  # our defaults, as many starts and moves as the paper's


def rows(*, quick: bool = False) -> list[Row]:
    """The leaderboard's attacks with 100 steps of 0.01 and 50 starts, MarginAttack with 500 moves and 50 starts."""
    starts, steps, n, batch = (3, 40, 40, 40) if quick else (50, 100, 1000, 1000)
    level = paper.CHALLENGE_LEVEL
    pgd = PGD(eps=level, steps=steps, step=0.3 / 30, relative=False, restarts=starts)
    ours = preset("challenge")
    if quick:
        ours = replace(ours, restarts=2, moves=100, closing=4)
    defaults = MarginAttack(restarts=3 if quick else 10, radius=level)
    attacks = {
        LONG: replace(defaults, restarts=ours.restarts, moves=ours.moves, closing=ours.closing),
        "MarginAttack": ours,
        "PGD, cross-entropy": pgd,
        "PGD, CW loss": replace(pgd, loss=MARGIN),
        "Logit difference": LogitDifferenceAttack(
            eps=level, steps=steps, step=0.3 / 30, relative=False, restarts=max(1, round(starts / 9))
        ),
        "DAA": DAA(eps=level, steps=steps, step=1 / 30, particles=starts),
        "MarginAttack, our defaults": defaults,
        RACE: Race(passes=200 if quick else 4000),
    }
    return [
        Row(name=name, subject="challenge", n=n, batch=batch, run=plain(name, attack, "linf"))
        for name, attack in attacks.items()
    ]


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Hits within 0.3 of each attack, on all its samples and on those that MarginAttack went through too."""
    level = paper.CHALLENGE_LEVEL
    rates: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        distance = np.array(outcome.distance)
        rates[name] = {
            "settings": outcome.settings,
            "n": len(distance),
            "hits": hits(distance, level),
            "wrong": hits(distance, 0.0),
            "passes": float(np.mean(outcome.passes)),
            "seconds": outcome.seconds,
            "beside": {
                ours: beside(outcome, outcomes[ours], [level]) for ours in OURS if ours in outcomes and ours != name
            },
        }
    most = max((len(outcome.distance) for outcome in outcomes.values()), default=0)
    far = {name: outcome.distance for name, outcome in outcomes.items() if len(outcome.distance) == most}
    fallen = hits(np.min(list(far.values()), axis=0), level) if most else 0
    return {"level": level, "rows": rates, "any": {"n": most, "attacks": list(far), "hits": fallen}}
