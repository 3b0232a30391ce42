"""Success rates under given norms (the paper's Tables 1 and 2), for each data set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import FGSM, PGD, CarliniWagner, DeepFool, MarginAttack, Race
from marginattack.attacks.presets import preset
from marginattack.reproduce import paper
from marginattack.reproduce.rows import Outcome, Piece, Row, Run, finite, plain, searches

SEARCHES = (3, 5, 10)
RACE = "Race, 400 passes"  # the default of measure()
OURS = {
    "MarginAttack": "the paper's settings", "MarginAttack, our defaults": "our defaults", RACE: "Race",
}  # fmt: skip
HAIR = 1e-6  # of a level: points of attacks within a radius lie on it, give or take rounding

# The samples of each row at most, and at once: full runs
SIZES = {
    "mnist": {"many": (10_000, 2000), "one": (10_000, 5000), "PGD": (10_000, 2000), "CW": (1000, 1000)},
    "cifar10": {"many": (1000, 500), "one": (10_000, 1000), "PGD": (1000, 500), "CW": (1000, 500)},
    "imagenet": {"many": (500, 100), "one": (500, 100), "PGD": (500, 100), "CW": (500, 100)},
}
# Quick ones, for two cores
QUICK = {
    "mnist": {"many": (40, 40), "one": (40, 40), "PGD": (40, 40), "CW": (12, 12)},
    "cifar10": {"many": (12, 12), "one": (12, 12), "PGD": (12, 12), "CW": (6, 6)},
    "imagenet": {"many": (4, 4), "one": (4, 4), "PGD": (4, 4), "CW": (4, 4)},
}
CW_STEPS = {"mnist": 150, "cifar10": 60, "imagenet": 20}  # in quick runs; 2,000 in full ones


def rows(data: str, *, quick: bool = False) -> list[Row]:
    """The rows of both tables for one data set; PGD after MarginAttack, whose quantiles it needs."""
    starts = 1 if quick else paper.STARTS[data]
    sizes = (QUICK if quick else SIZES)[data]

    def row(name: str, run: Run, size: str = "one") -> Row:
        n, batch = sizes[size]
        return Row(name=name, subject=data, n=n, batch=batch, run=run)

    made = []
    for norm in ("l2", "linf"):
        ours = replace(preset(f"{data}-{norm}"), restarts=starts)
        made.append(row(f"{norm} MarginAttack", plain(f"{norm} MarginAttack", ours, norm), "many"))
        mine = f"{norm} MarginAttack, our defaults"
        made.append(row(mine, plain(mine, MarginAttack(), norm)))
        race = f"{norm} {RACE}"
        made.append(row(race, plain(race, Race(passes=400), norm)))
    made.append(row("l2 DeepFool", plain("l2 DeepFool", DeepFool(steps=200), "l2")))
    made.append(row("linf FGSM", plain("linf FGSM", FGSM(), "linf")))
    made.append(row("linf PGD", _pgd(data, starts, 30 if quick else 200, sizes["many"][1]), "PGD"))
    numbers = (5,) if data == "imagenet" else SEARCHES
    cw = CarliniWagner(
        searches=numbers[-1], steps=CW_STEPS[data] if quick else 2000, rate=paper.CW_RATE[data], initial=1e-2
    )
    made.append(row("l2 CW", searches(cw, numbers, [f"l2 CW {number}" for number in numbers]), "CW"))
    return made


def levels(data: str, norm: str) -> tuple[float, ...]:
    """The paper's levels, for pixels in [0, 1]."""
    return tuple(level / paper.UNIT[data] for level in paper.LEVELS[norm][data])


def quantiles(ours: Outcome, batch: int) -> tuple[float, ...]:
    """The 0.2, 0.4, 0.6 and 0.8 quantiles of MarginAttack's margins on the first samples.

    Those of the first batch alone, so that they stay what they are when n grows.
    """
    return tuple(float(q) for q in np.quantile(np.array(ours.distance[:batch]), paper.QUANTILES, method="lower"))


def _pgd(data: str, starts: int, steps: int, batch: int) -> Run:
    """PGD within each of the levels, from the smallest up; what it has fooled within one counts at the larger ones."""

    def run(piece: Piece) -> dict[str, Outcome]:
        own = quantiles(piece.before("linf MarginAttack"), batch)
        every = sorted({*levels(data, "linf"), *own})
        best, passes, seconds = np.full(len(piece.images), np.inf), np.zeros(len(piece.images), int), 0.0
        attack = PGD(steps=steps, step=paper.PGD_RATE[data] / paper.UNIT[data], relative=False, restarts=starts)
        for level in every:
            left = np.flatnonzero(best > level * (1 + HAIR))
            if level <= 0 or len(left) == 0:
                continue
            part = piece.some(left.tolist()).measured(replace(attack, eps=level), "linf")
            best[left] = np.minimum(best[left], part.distance)
            passes[left] += part.passes
            seconds += part.seconds
        settings = repr(attack).replace(f"eps={attack.eps}", "eps=each level") + piece.note
        return {
            "linf PGD": Outcome(
                settings=settings, distance=best.tolist(), passes=passes.tolist(), seconds=seconds,
                extra={"levels": every},
            )
        }  # fmt: skip

    return run


def summarise(data: str, outcomes: dict[str, Outcome], *, quick: bool = False) -> dict[str, Any]:
    """Success rates of each row at the paper's levels and at our own quantiles, with those of MarginAttack beside."""
    batch = (QUICK if quick else SIZES)[data]["many"][1]
    made: dict[str, Any] = {}
    for norm in ("l2", "linf"):
        found = {name.removeprefix(f"{norm} "): outcomes[name] for name in outcomes if name.startswith(f"{norm} ")}
        if "MarginAttack" not in found:
            continue
        own = quantiles(found["MarginAttack"], batch)
        every = (*levels(data, norm), *own)
        made[norm] = {
            "levels": list(levels(data, norm)),
            "quantiles": list(own),
            "rows": {name: _rates(outcome, every) for name, outcome in found.items()},
        }
        for name, outcome in found.items():
            made[norm]["rows"][name]["beside"] = {
                ours: beside(outcome, found[ours], every) for ours in OURS if ours in found and ours != name
            }
    return made


def _rates(outcome: Outcome, every: Sequence[float]) -> dict[str, Any]:
    """One row: hits at each level, and what they cost."""
    distance = np.array(outcome.distance)
    return {
        "settings": outcome.settings,
        "n": len(distance),
        "hits": [hits(distance, level) for level in every],
        "wrong": hits(distance, 0.0),
        "not_found": int(np.isinf(distance).sum()),
        "median": finite(np.median(distance)),
        "passes": float(np.mean(outcome.passes)),
        "seconds": outcome.seconds,
    }


def beside(theirs: Outcome, ours: Outcome, every: Sequence[float]) -> dict[str, Any]:
    """Hits of both on the samples that both went through."""
    n = min(len(theirs.distance), len(ours.distance))
    return {
        "n": n,
        "theirs": [hits(np.array(theirs.distance[:n]), level) for level in every],
        "ours": [hits(np.array(ours.distance[:n]), level) for level in every],
    }


def hits(distance: "np.ndarray", level: float) -> int:
    """How many samples have an adversarial point within this level, those misclassified as they are among them."""
    return int((distance <= level * (1 + HAIR)).sum())
