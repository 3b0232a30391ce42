"""Attacks within 0.3 on the network trained against them (the paper's Table 3)."""

from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import DAA, PGD, LogitDifferenceAttack, MarginAttack, Race
from marginattack.attacks.presets import preset, with_exact_ball
from marginattack.core.losses import Hinge
from marginattack.reproduce import paper
from marginattack.reproduce.runner import Outcome, Row, attack_row
from marginattack.reproduce.success_rates import EXACT, compare_hits, count_hits

RACE = "Race, 4,000 passes"  # with less than half the budget of the attacks within 0.3
LONG = "MarginAttack, 50 starts of 500 moves, ours"  # our defaults, with as many starts and moves as the paper's


def rows(*, quick: bool = False) -> list[Row]:
    """The leaderboard's attacks with 100 steps of 0.01 and 50 starts, MarginAttack with 500 moves and 50 starts."""
    starts, steps, n = (3, 40, 40) if quick else (50, 100, 1000)
    eps = paper.CHALLENGE_LEVEL
    within: dict[str, Any] = {"eps": eps, "steps": steps, "step": 0.3 / 30, "relative": False}
    pgd = PGD(**within, restarts=starts)
    published = replace(preset("challenge"), restarts=2, moves=100, closing=4) if quick else preset("challenge")
    defaults = MarginAttack(restarts=3 if quick else 10, radius=eps)
    attacks = {
        LONG: replace(defaults, restarts=published.restarts, moves=published.moves, closing=published.closing),
        "MarginAttack": published,
        EXACT: with_exact_ball(published),
        "PGD, cross-entropy": pgd,
        "PGD, CW loss": replace(pgd, loss=Hinge()),
        "Logit difference": LogitDifferenceAttack(**within, restarts=max(1, round(starts / 9))),
        "DAA": DAA(eps=eps, steps=steps, step=1 / 30, particles=starts),
        "MarginAttack, our defaults": defaults,
        RACE: Race(passes=200 if quick else 4000),
    }
    return [
        attack_row(name, attack, "linf", model="challenge", n=n, batch_size=min(n, 200))
        for name, attack in attacks.items()
    ]


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Hits within 0.3 of each attack, on all its samples and on those that it shares with MarginAttack."""
    level = paper.CHALLENGE_LEVEL
    rates: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        hits, wrong = (count_hits(np.array(outcome.distance), distance) for distance in (level, 0.0))
        compared = compare_hits(name, outcomes, [level])
        rates[name] = outcome.summary() | {"hits": hits, "wrong": wrong, "beside": compared}
    most = max((len(outcome.distance) for outcome in outcomes.values()), default=0)
    longest = {name: outcome.distance for name, outcome in outcomes.items() if len(outcome.distance) == most}
    hits = count_hits(np.min(list(longest.values()), axis=0), level) if most else 0
    return {"level": level, "rows": rates, "any": {"n": most, "attacks": list(longest), "hits": hits}}
