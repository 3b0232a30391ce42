"""How fast MarginAttack converges (the paper's Figure 3 and its text): one sample's path, and the margin by moves."""

from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import MarginAttack
from marginattack.attacks.presets import preset, with_exact_ball
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.execution.session import open_session
from marginattack.reproduce.runner import Batch, Outcome, Row, attack_row, finite_or_none
from marginattack.runs.trace import trace

MOVES = (5, 10, 15, 20, 30, 50, 100, 200)
SIZES, QUICK = {"mnist": 1000, "cifar10": 500}, {"mnist": 30, "cifar10": 6}  # samples, in one batch


def rows(*, quick: bool = False) -> list[Row]:
    """MarginAttack with one start and each number of moves, the paper's settings and ours."""
    table = [Row(name="path", model="cifar10", n=1, batch_size=1, run=trace_path)]
    for data, n in (QUICK if quick else SIZES).items():
        for norm in ("l2", "linf"):
            published = replace(preset(f"{data}-{norm}"), restarts=1, radius=0.0)
            attacks = {"the paper's settings": published, "our defaults": MarginAttack()}
            if (exact := with_exact_ball(published)) != published:
                attacks["the paper's settings, exact ball"] = exact
            for settings, attack in attacks.items():
                for moves in MOVES:
                    shorter = replace(attack, moves=moves, closing=max(1, moves // 10))
                    name = f"{data} {norm} {moves} {settings}"
                    table.append(attack_row(name, shorter, norm, model=data, n=n, batch_size=n))
    return table


def trace_path(batch: Batch) -> dict[str, Outcome]:
    """Norm and constraint at every query of one image, with the paper's settings for ℓ2."""
    attack = replace(preset("cifar10-l2"), restarts=1, radius=0.0)
    with open_session(Classifier(batch.model)) as session:
        path = trace(session, session.validate(batch.images, batch.labels, ids=batch.ids), L2, attack)
    rounded = {name: [round(value, 6) for value in path[name]] for name in ("distance", "c")}
    extra = {**rounded, "move": path["move"], "best": [round(b, 6) if np.isfinite(b) else None for b in path["best"]]}
    return {"path": Outcome(settings=repr(attack), distance=[min(path["best"])], passes=[0], extra=extra)}


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The path, and medians and success by data set, norm, settings and moves."""
    tables: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        if name == "path":
            continue
        data, norm, moves, settings = name.split(" ", 3)
        distance = np.array(outcome.distance)
        correct = distance > 0
        table = tables.setdefault(f"{data} {norm}, {settings}", {"n": int(correct.sum()), "moves": {}})
        table["moves"][moves] = {
            "median": finite_or_none(np.median(distance[correct])),
            "found": float(np.isfinite(distance[correct]).mean()),
            "passes": float(np.mean(np.array(outcome.passes)[correct])),
            "settings": outcome.settings,
        }
    return {"path": outcomes["path"].extra if "path" in outcomes else None, "tables": tables}
