"""Ablations of choices that the paper makes without evidence: each choice and its alternatives, all else equal."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from marginattack.attacks import MarginAttack
from marginattack.attacks.marginattack import (
    ActiveSet,
    BallProjection,
    Clipped,
    LinearProjection,
    Number,
    TangentProjection,
)
from marginattack.attacks.presets import preset, with_exact_ball
from marginattack.core.norms import L1
from marginattack.core.problem import Problem
from marginattack.core.schedules import Power
from marginattack.core.types import Points
from marginattack.reproduce.records import encode
from marginattack.reproduce.runner import Outcome, Row, attack_row, finite_or_none


@dataclass(frozen=True)
class TangentProjectionAsPrinted:
    """Eq. 8 as printed, without its minus sign: a = 1, ∇d = z − x₀, b = a ∇cᵀ∇d / ∇cᵀs."""

    sign: float = 1.0
    unit: bool = False

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        grad_d = z - problem.x0
        if self.unit:
            grad_d = grad_d / problem.norm.size(grad_d).clamp(min=torch.finfo(z.dtype).tiny)
        s = problem.norm.steepest(g)
        along = (g * s).sum(1, keepdim=True)
        b = self.sign * torch.where(along > 0, (g * grad_d).sum(1, keepdim=True) / along, 0)
        return z - beta * grad_d - beta * b * s


@dataclass(frozen=True)
class LinearProjectionAsPrinted:
    """Eq. 10 as printed: a = 1 − b ∇dᵀs / ∇dᵀ∇d with ∇d the subgradient of ℓ∞ at its largest coordinate."""

    b: float

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        v, s = z - problem.x0, problem.norm.steepest(g)
        grad_d = torch.zeros_like(v).scatter(1, v.abs().argmax(1, keepdim=True), 1) * torch.sign(v)
        a = 1 - self.b * (grad_d * s).sum(1, keepdim=True)
        return z - beta * a * grad_d - beta * self.b * s


BY_MOVES = Power(1.0, stride=2)  # (2k + 2)^−1, as in the first author's implementation


def variants(norm: str) -> dict[str, MarginAttack]:
    """The variants by name; the first is the corrected text of the paper, with one start at the input."""
    text = replace(preset(f"mnist-{norm}"), restarts=1, radius=0.0)
    ten = replace(text, restarts=10, radius=0.05)
    attacks = {
        "text, corrected": text,
        "box: clipped after the hop": replace(text, restoration=Clipped()),
        "box: five active-set passes": replace(text, restoration=ActiveSet(5)),
        **{f"target scans: {scans}": replace(text, scans=scans) for scans in (0, 1, 5)},
        "start: one random, u = 0.05": replace(text, radius=0.05),
        "start: ten random, u = 0.05": ten,
        "closing moves with α = 0.2": replace(text, closing_alpha=0.2),
        "final tuning until misclassified": replace(text, until_misclassified=True),
        "our defaults": MarginAttack(),
    }
    if norm == "l2":
        attacks |= {
            "design 2, b = 0.1": replace(text, projection=BallProjection(b=0.1)),
            "design 2, b = 1": replace(text, projection=BallProjection(b=1.0)),
            "first author's settings": preset("author-l2"),
            "Eq. 8 as printed (no minus)": replace(text, projection=TangentProjectionAsPrinted()),
            "∇d a unit vector": replace(text, projection=TangentProjectionAsPrinted(sign=-1.0, unit=True)),
        }
    else:
        printed = replace(text, projection=LinearProjectionAsPrinted(b=0.1))
        exact, ten_exact = with_exact_ball(text), with_exact_ball(ten)
        attacks |= {
            "∇d of the largest coordinate": replace(text, projection=LinearProjection(b=0.1, dual=L1)),
            "β by moves": replace(text, beta=BY_MOVES),
            "β by moves, ten random starts": replace(ten, beta=BY_MOVES),
            "exact ball": exact,
            "exact ball, ten random starts": ten_exact,
            "exact ball, β by moves": replace(exact, beta=BY_MOVES),
            "exact ball, β by moves, ten random starts": replace(ten_exact, beta=BY_MOVES),
            "exact ball, β from the second pair, ten random starts": replace(ten_exact, beta=Power(1.0, first=2)),
            "design 1": replace(text, projection=TangentProjection()),
            "our defaults with design 1": MarginAttack(projection=TangentProjection()),
            "first author's settings": preset("author-linf"),
            "Eq. 10 as printed": printed,
            "Eq. 10 as printed, α = 0.2 to the end": replace(printed, closing_alpha=0.2),
        }
    return attacks


def rows(*, quick: bool = False) -> list[Row]:
    """Every variant on digits; quick runs have fewer digits and a quarter of the moves."""
    n, table = 16 if quick else 1000, []
    for norm in ("l2", "linf"):
        for name, attack in variants(norm).items():
            if quick:
                attack = replace(attack, moves=50, closing=5, restarts=min(attack.restarts, 2))
            table.append(attack_row(f"{norm} {name}", attack, norm, model="mnist", n=n, batch_size=n))
    return table


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Median margin, its excess over the best of all variants, and success, by norm and variant."""
    tables: dict[str, Any] = {}
    for norm in ("l2", "linf"):
        found = {name: np.array(o.distance) for name, o in outcomes.items() if name.startswith(f"{norm} ")}
        if not found:
            continue
        n = min(map(len, found.values()))
        least = np.min([distance[:n] for distance in found.values()], axis=0)
        known = (least > 0) & np.isfinite(least)
        tables[norm] = {"n": int(known.sum()), "rows": {}}
        for name, distance in found.items():
            margins = distance[:n][known]
            tables[norm]["rows"][name.removeprefix(f"{norm} ")] = {
                "settings": outcomes[name].settings,
                "median": finite_or_none(np.median(margins)),
                "excess_median": finite_or_none(np.median(margins / least[known] - 1)),
                "found": float(np.isfinite(margins).mean()),
                "passes": float(np.mean(np.array(outcomes[name].passes)[:n][known])),
                "distances": encode(outcomes[name].distance),
            }
    return tables
