"""The readings of the paper's ℓ∞ settings compared with PGD, all on the same samples.

The second design is linearised, as in the text, or exact, as in the first author's implementation; β counts pairs of
moves, as in the table, or moves.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import PGD, MarginAttack
from marginattack.attacks.presets import preset, with_exact_ball
from marginattack.core.schedules import Power
from marginattack.reproduce import paper
from marginattack.reproduce.runner import Outcome, Row, attack_row
from marginattack.reproduce.success_rates import TOLERANCE, count_hits, levels, run_pgd

PGD_ROW = "PGD"
SIZES = {"mnist": (250, 25), "cifar10": (500, 100), "challenge": (200, 100)}  # samples, and samples per batch
QUICK, QUICK_STARTS = {"mnist": 30}, 3


def readings(published: MarginAttack) -> dict[str, MarginAttack]:
    """The preset, and other readings of the paper's text."""
    exact, by_moves = with_exact_ball(published), Power(1.0, stride=2)
    return {
        "linearised, β by pairs": published,
        "linearised, tuned until misclassified": replace(published, until_misclassified=True),
        "linearised, β by moves": replace(published, beta=by_moves),
        "exact, β by pairs": exact,
        "exact, β by moves": replace(exact, beta=by_moves),
        "exact, β from the second pair": replace(exact, beta=Power(1.0, first=2)),
        "our defaults": MarginAttack(),
    }


def levels_of(data: str) -> tuple[float, ...]:
    """The distances of Table 2, or of Table 3."""
    return (paper.CHALLENGE_LEVEL,) if data == "challenge" else levels(data, "linf")


def rows(*, quick: bool = False) -> list[Row]:
    """Every reading and PGD by data set; quick runs have fewer digits and starts, and PGD a quarter of the steps."""
    table = []
    for data in QUICK if quick else SIZES:
        n, batch_size = (QUICK[data],) * 2 if quick else SIZES[data]
        size: dict[str, Any] = {"model": data, "n": n, "batch_size": batch_size}
        published = preset("challenge" if data == "challenge" else f"{data}-linf")
        published = replace(published, restarts=QUICK_STARTS) if quick else published
        for name, attack in readings(published).items():
            table.append(attack_row(f"{data} {name}", attack, "linf", **size))
        step = 0.01 if data == "challenge" else paper.PGD_RATE[data] / paper.UNIT[data]
        steps = 100 if data == "challenge" else 200
        pgd = PGD(steps=steps // 4 if quick else steps, step=step, relative=False, restarts=published.restarts)
        name = f"{data} {PGD_ROW}"
        table.append(Row(name=name, run=run_pgd(name, pgd, lambda _, data=data: levels_of(data)), **size))  # type: ignore[misc]
    return table


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Hits of each reading at each level, and the distance of every sample."""
    tables: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        data, reading = name.split(" ", 1)
        table = tables.setdefault(data, {"levels": list(levels_of(data)), "rows": {}})
        hits = [count_hits(np.array(outcome.distance), level) for level in levels_of(data)]
        table["rows"][reading] = outcome.summary() | {"hits": hits}
    return tables


def sign_tests(ours: "np.ndarray", theirs: "np.ndarray", all_levels: Sequence[float]) -> list[dict[str, Any]]:
    """At each level: samples fooled by ours alone and by theirs alone, and the p of a sign test."""
    from scipy.stats import binomtest

    n, tests = min(len(ours), len(theirs)), []
    for level in all_levels:
        a, b = (distance[:n] <= level * (1 + TOLERANCE) for distance in (ours, theirs))
        alone, other = int((a & ~b).sum()), int((b & ~a).sum())
        p = float(binomtest(alone, alone + other).pvalue) if alone + other else 1.0
        tests.append({"n": n, "ours": alone, "theirs": other, "p": p})
    return tests
