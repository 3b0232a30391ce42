"""Seconds for one batch (the paper's Table 4): one start each, CW limited to 200 iterations."""

from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import FGSM, PGD, Attack, CarliniWagner, DeepFool
from marginattack.attacks.presets import preset
from marginattack.reproduce import paper
from marginattack.reproduce.runner import Batch, Outcome, Row, RunBatch, attack_row, run_cw
from marginattack.reproduce.success_rates import levels

OURS = "MarginAttack"
EARLY = "MarginAttack, stopped early"
GAIN = 1e-3  # relative; a sample is finished when ten pairs of moves gain less
END = ", to the end"  # CW with all its iterations, as the paper's times suggest that it was run
REPEATS = 3


def rows(*, quick: bool = False) -> list[Row]:
    """The rows of all data sets. A warm-up is not counted; the time is the median of several repeats."""
    table = []
    for data in paper.TIMED:
        n = {"mnist": 20, "cifar10": 5, "imagenet": 2}[data] if quick else paper.TIMED[data]
        size: dict[str, Any] = {"model": data, "n": n, "batch_size": n}
        repeats, moves = (1, 50) if quick else (REPEATS, 200)
        level, step = levels(data, "linf")[2], paper.PGD_RATE[data] / paper.UNIT[data]
        ours = replace(preset(f"{data}-l2"), restarts=1, moves=moves, closing=moves // 10)
        attacks: dict[str, tuple[Attack, str]] = {
            OURS: (ours, "l2"),
            EARLY: (replace(ours, gain=GAIN), "l2"),
            "DeepFool": (DeepFool(steps=moves), "l2"),
            "PGD": (PGD(eps=level, steps=moves, step=step, relative=False, stop=False), "linf"),
            "FGSM": (FGSM(), "linf"),
        }
        for name, attack in attacks.items():
            row = attack_row(f"{data} {name}", *attack, **size)
            table.append(replace(row, run=_time(row.run, repeats)))
        searches = paper.CW_SEARCHES[data]
        cw = CarliniWagner(searches=searches[-1], steps=moves, rate=paper.CW_RATE[data], initial=1e-2)
        for ending, variant in (("", cw), (END, replace(cw, abort=False))):
            run = run_cw(variant, {number: f"{data} CW {number}{ending}" for number in searches})
            table.append(Row(name=f"{data} CW{ending}", run=_time(run, repeats), **size))
    return table


def _time(run: RunBatch, repeats: int) -> RunBatch:
    """Repeat a run; the time of each outcome is the median."""

    def run_repeatedly(batch: Batch) -> dict[str, Outcome]:
        for warm_up in (DeepFool(steps=1), CarliniWagner(searches=1, steps=2)):  # loading Adam takes seconds
            batch.measure(warm_up, "l2")
        repeated = [run(batch) for _ in range(repeats)]
        for name, outcome in repeated[-1].items():
            outcome.extra["times"] = [outcomes[name].seconds for outcomes in repeated]
            outcome.seconds = float(np.median(outcome.extra["times"]))
        return repeated[-1]

    return run_repeatedly


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Seconds, median distances and passes by data set and attack."""
    tables: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        data, attack = name.split(" ", 1)
        tables.setdefault(data, {})[attack] = outcome.summary() | {"times": outcome.extra["times"]}
    return tables
