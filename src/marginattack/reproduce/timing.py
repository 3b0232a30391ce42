"""Seconds for one batch (the paper's Table 4): one start each, CW cut to 200 iterations."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import FGSM, PGD, Attack, CarliniWagner, DeepFool
from marginattack.attacks.presets import preset
from marginattack.reproduce import paper
from marginattack.reproduce.rows import Outcome, Piece, Row, Run, finite, searches
from marginattack.reproduce.tables import SEARCHES, levels

OURS = "MarginAttack"
EARLY = "MarginAttack, stopped early"
GAIN = 1e-3  # of the distance; a sample that ten pairs of moves bring less is left alone
END = ", to the end"  # CW without giving up a search that gains nothing, as the paper's seems to be
REPEATS = {"mnist": 3, "cifar10": 3, "imagenet": 2}


def rows(data: str, *, quick: bool = False) -> list[Row]:
    """The rows of one data set. The warm-up is not counted; the median of some repeats is."""
    n = {"mnist": 20, "cifar10": 5, "imagenet": 2}[data] if quick else paper.TIMED[data]
    repeats, moves = (1, 50) if quick else (REPEATS[data], 200)
    level = levels(data, "linf")[2]
    unit = paper.PGD_RATE[data] / paper.UNIT[data]
    ours = replace(preset(f"{data}-l2"), restarts=1, moves=moves, closing=moves // 10)
    numbers = (5,) if data == "imagenet" else SEARCHES
    cw = CarliniWagner(searches=numbers[-1], steps=moves, rate=paper.CW_RATE[data], initial=1e-2)
    attacks: dict[str, tuple[Attack, str]] = {
        OURS: (ours, "l2"),
        EARLY: (replace(ours, gain=GAIN), "l2"),
        "DeepFool": (DeepFool(steps=moves), "l2"),
        "PGD": (PGD(eps=level, steps=moves, step=unit, relative=False, stop=False), "linf"),
        "FGSM": (FGSM(), "linf"),
    }
    runs: dict[str, Run] = {name: _timed(name, *attack, repeats) for name, attack in attacks.items()}
    for ending, attack in (("", cw), (END, replace(cw, abort=False))):
        runs[f"CW{ending}"] = _warmed(searches(attack, numbers, [f"CW {number}{ending}" for number in numbers]))
    return [
        Row(name=f"{data} {name}", subject=data, n=n, batch=n, run=_named(data, run)) for name, run in runs.items()
    ]  # fmt: skip


def _named(data: str, run: Run) -> Run:
    return lambda piece: {f"{data} {name}": outcome for name, outcome in run(piece).items()}


def _warmed(run: Run) -> Run:
    def warm(piece: Piece) -> dict[str, Outcome]:
        piece.measured(CarliniWagner(searches=1, steps=2), "l2")  # its Adam takes seconds to load
        outcomes = run(piece)
        for outcome in outcomes.values():
            outcome.extra["times"] = [outcome.seconds]
        return outcomes

    return warm


def _timed(name: str, attack: Attack, norm: str, repeats: int) -> Run:
    """The same attack some times over; its seconds are the median."""

    def run(piece: Piece) -> dict[str, Outcome]:
        piece.measured(DeepFool(steps=1), "l2")
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            outcome = piece.measured(attack, norm)
            times.append(time.perf_counter() - began)
        outcome.seconds, outcome.extra["times"] = float(np.median(times)), times
        return {name: outcome}

    return run


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Seconds, median distances and passes by data set and attack."""
    tables: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        data, attack = name.split(" ", 1)
        tables.setdefault(data, {})[attack] = {
            "settings": outcome.settings,
            "n": len(outcome.distance),
            "seconds": outcome.seconds,
            "times": outcome.extra["times"],
            "median": finite(np.median(outcome.distance)),
            "passes": float(np.mean(outcome.passes)),
        }
    return tables
