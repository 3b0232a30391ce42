"""How fast MarginAttack converges (the paper's Figure 3 and its text): one sample's path, and the margin by moves."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from marginattack.attacks import MarginAttack
from marginattack.attacks.presets import preset
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2
from marginattack.reproduce.rows import Outcome, Piece, Row, finite, plain
from marginattack.runs.trace import trace

MOVES = (5, 10, 15, 20, 30, 50, 100, 200)
SIZES = {"mnist": (1000, 1000), "cifar10": (500, 500)}
QUICK = {"mnist": (30, 30), "cifar10": (6, 6)}


def rows(*, quick: bool = False) -> list[Row]:
    """MarginAttack with one start and each number of moves, the paper's settings and ours."""
    made = [Row(name="path", subject="cifar10", n=1, batch=1, run=path)]
    for data, (n, batch) in (QUICK if quick else SIZES).items():
        for norm in ("l2", "linf"):
            text = replace(preset(f"{data}-{norm}"), restarts=1, radius=0.0)
            for who, attack in (("the paper's settings", text), ("our defaults", MarginAttack())):
                for moves in MOVES:
                    name = f"{data} {norm} {moves} {who}"
                    fewer = replace(attack, moves=moves, closing=max(1, moves // 10))
                    made.append(Row(name=name, subject=data, n=n, batch=batch, run=plain(name, fewer, norm)))
    return made


def path(piece: Piece) -> dict[str, Outcome]:
    """Norm and constraint at every look at one image, the paper's settings for ℓ2."""
    attack = replace(preset("cifar10-l2"), restarts=1, radius=0.0)
    classifier = Classifier(piece.model)
    with classifier.held():
        x, y, _ = classifier.accept(piece.images, piece.labels)
        looks = trace(classifier, x, y, L2, attack, ids=torch.tensor(piece.ids))
    rounded = {name: [round(value, 6) for value in looks[name]] for name in ("distance", "c")}
    extra = {**rounded, "move": looks["move"], "best": [round(b, 6) if np.isfinite(b) else None for b in looks["best"]]}
    return {"path": Outcome(settings=repr(attack), distance=[min(looks["best"])], passes=[0], extra=extra)}


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The path, and medians and success by data set, norm, settings and moves."""
    tables: dict[str, Any] = {}
    for name, outcome in outcomes.items():
        if name == "path":
            continue
        data, norm, moves, who = name.split(" ", 3)
        distance = np.array(outcome.distance)
        right = distance > 0
        table = tables.setdefault(f"{data} {norm}, {who}", {"n": int(right.sum()), "moves": {}})
        table["moves"][moves] = {
            "median": finite(np.median(distance[right])),
            "found": float(np.isfinite(distance[right]).mean()),
            "passes": float(np.mean(np.array(outcome.passes)[right])),
        }
    return {"path": outcomes["path"].extra if "path" in outcomes else None, "tables": tables}
