"""Follow-up experiments: Race with the present code, PGD's loss on the challenge, the gap to CW on CIFAR-10."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from marginattack.attacks import PGD, MarginAttack, Race
from marginattack.attacks.presets import preset
from marginattack.core.losses import Hinge, Margin
from marginattack.core.schedules import Power
from marginattack.reproduce import paper
from marginattack.reproduce.markdown import table
from marginattack.reproduce.records import decode
from marginattack.reproduce.runner import Outcome, Row, attack_row
from marginattack.reproduce.success_rates import count_hits, levels

Table = list[Sequence[object]]
HINGE, MARGIN = "hinge 50, the challenge's CW loss", "margin"
PRESET, DEFAULTS = "the paper's settings", "our defaults"


def race_rows(*, quick: bool = False) -> list[Row]:
    """Race with 400 passes on the bundled digits, in both norms."""
    n = 20 if quick else 1000
    return [
        attack_row(norm, Race(passes=400), norm, model="mnist", n=n, batch_size=min(n, 100)) for norm in ("l2", "linf")
    ]


def losses_rows(*, quick: bool = False) -> list[Row]:
    """PGD within 0.3 with 100 steps of 0.01 and ten starts, with both losses."""
    n, starts = (5, 1) if quick else (50, 10)
    pgd = PGD(eps=paper.CHALLENGE_LEVEL, steps=100, step=0.01, relative=False, restarts=starts)
    return [
        attack_row(name, replace(pgd, loss=loss), "linf", model="challenge", n=n, batch_size=n)
        for name, loss in ((HINGE, Hinge()), (MARGIN, Margin()))
    ]


def gap_rows(*, quick: bool = False) -> list[Row]:
    """The preset for CIFAR-10 in ℓ2 from one start at the input, and with one setting replaced each."""
    n, ours = 3 if quick else 50, MarginAttack()
    text = replace(preset("cifar10-l2"), restarts=1, radius=0.0)
    attacks = {PRESET: text, DEFAULTS: ours}
    for field in fields(text):
        mine = getattr(ours, field.name)
        if field.name not in ("restarts", "radius", "projection") and mine != getattr(text, field.name):
            attacks[f"{field.name} = {mine}"] = replace(text, **{field.name: mine})
    attacks["beta = (k + 1)^−1"] = replace(text, beta=Power(1.0))
    attacks["moves = 400, closing = 40"] = replace(text, moves=400, closing=40)
    return [attack_row(name, attack, "l2", model="cifar10", n=n, batch_size=n) for name, attack in attacks.items()]


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The median, the cost and the distance of every sample by row."""
    return {"rows": {name: outcome.summary() for name, outcome in outcomes.items()}}


def race_table(numbers: dict[str, Any]) -> list[str]:
    """Success rates at the paper's levels."""
    rows: Table = []
    for norm, row in numbers["rows"].items():
        rates = [100 * count_hits(decode(row["distances"]), level) / row["n"] for level in levels("mnist", norm)]
        joined = " / ".join(f"{rate:.1f}" for rate in rates)
        rows.append((norm, f"{row['n']:,}", joined, f"{row['median']:.4g}", f"{row['passes']:,.0f}"))
    return table(("norm", "n", "% at the paper's levels", "median", "passes"), rows)


def losses_table(numbers: dict[str, Any]) -> list[str]:
    """Hits within 0.3, and the samples for which both losses give the same distance."""
    first, rows = decode(numbers["rows"][HINGE]["distances"]), list[Sequence[object]]()
    for name, row in numbers["rows"].items():
        distance = decode(row["distances"])
        hits, same = count_hits(distance, paper.CHALLENGE_LEVEL), int((distance == first).sum())
        rows.append((name, row["n"], hits, f"{same} of {row['n']}", f"{row['passes']:,.0f}"))
    return table(("PGD, loss", "n", "fooled within 0.3", "same distance as with the hinge", "passes"), rows)


def gap_table(numbers: dict[str, Any]) -> list[str]:
    """The change of the margin against the preset; samples that are nearer, and farther, by more than 0.1 %."""
    from scipy.stats import binomtest

    text, rows = decode(numbers["rows"][PRESET]["distances"]), list[Sequence[object]]()
    for name, row in numbers["rows"].items():
        distance = decode(row["distances"])
        known = (text > 0) & np.isfinite(text) & np.isfinite(distance)
        ratio = distance[known] / text[known]
        nearer, farther = int((ratio < 0.999).sum()), int((ratio > 1.001).sum())
        p = f"{binomtest(nearer, nearer + farther).pvalue:.2g}" if nearer + farther else "1"
        change = f"{100 * (np.median(ratio) - 1):+.2f} / {100 * (ratio.mean() - 1):+.2f}"
        rows.append((name, int(known.sum()), change, f"{nearer}, {farther} ({p})", f"{row['passes']:,.0f}"))
    header = (
        "setting replaced",
        "n",
        "change of the margin in %, median / mean",
        "nearer, farther by 0.1 % (p)",
        "passes",
    )
    return table(header, rows)
