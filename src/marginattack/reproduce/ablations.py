"""What the paper asserts without showing it: each choice beside its alternative, one start, everything else alike."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from marginattack.attacks import MarginAttack
from marginattack.attacks.marginattack import ActiveSet, Clipped, Number, Shrink, Slide
from marginattack.attacks.presets import preset
from marginattack.core.problem import Problem
from marginattack.core.types import Points
from marginattack.reproduce.rows import Outcome, Row, finite, plain


@dataclass(frozen=True)
class SlideAsPrinted:
    """Eq. 8 as printed, without its minus sign: a = 1, ∇d = z − x₀, b = a ∇cᵀ∇d / ∇cᵀs."""

    sign: float = 1.0
    unit: bool = False

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        slope = z - problem.x0
        if self.unit:
            slope = slope / problem.norm.size(slope).clamp(min=torch.finfo(z.dtype).tiny)
        s = problem.norm.steepest(g)
        along = (g * s).sum(1, keepdim=True)
        b = self.sign * torch.where(along > 0, (g * slope).sum(1, keepdim=True) / along, 0)
        return z - beta * slope - beta * b * s


@dataclass(frozen=True)
class ShrinkAsPrinted:
    """Eq. 10 as printed: a = 1 − b ∇dᵀs / ∇dᵀ∇d with ∇d the subgradient of ℓ∞ at its largest coordinate."""

    b: float

    def __call__(self, problem: Problem, z: Points, g: Points, beta: Number) -> Points:
        v, s = z - problem.x0, problem.norm.steepest(g)
        slope = torch.zeros_like(v).scatter(1, v.abs().argmax(1, keepdim=True), 1) * torch.sign(v)
        a = 1 - self.b * (slope * s).sum(1, keepdim=True)
        return z - beta * a * slope - beta * self.b * s


@dataclass(frozen=True)
class ByMoves:
    """(2k + 2)^−exponent: the move that projection k is, counted from 1 among moves of both kinds."""

    exponent: float

    def __call__(self, k: int, n: int) -> float:
        return float((2 * k + 2) ** -self.exponent)


def variants(norm: str) -> dict[str, MarginAttack]:
    """The attacks by name; the first is the paper's text, corrected, with one start at the input."""
    text = replace(preset(f"mnist-{norm}"), restarts=1, radius=0.0)
    made = {
        "text, corrected": text,
        "box: clipped after the hop": replace(text, restoration=Clipped()),
        "box: five active-set passes": replace(text, restoration=ActiveSet(5)),
        **{f"target scans: {scans}": replace(text, scans=scans) for scans in (0, 1, 5)},
        "start: one random, u = 0.05": replace(text, radius=0.05),
        "start: ten random, u = 0.05": replace(text, restarts=10, radius=0.05),
        "closing moves with α = 0.2": replace(text, closing_alpha=0.2),
        "our defaults": MarginAttack(),
    }
    if norm == "l2":
        made |= {
            "design 2, b = 0.1": replace(text, projection=Shrink(b=0.1)),
            "design 2, b = 1": replace(text, projection=Shrink(b=1.0)),
            "first author's settings": replace(preset("author-l2"), radius=0.0),
            "Eq. 8 as printed (no minus)": replace(text, projection=SlideAsPrinted()),
            "∇d a unit vector": replace(text, projection=SlideAsPrinted(sign=-1.0, unit=True)),
        }
    else:
        made |= {
            "design 1": replace(text, projection=Slide()),
            "our defaults with design 1": MarginAttack(projection=Slide()),
            "β by moves": replace(text, beta=ByMoves(1.0)),
            "β by moves, ten random starts": replace(text, beta=ByMoves(1.0), restarts=10, radius=0.05),
            "Eq. 10 as printed": replace(text, projection=ShrinkAsPrinted(b=0.1)),
            "Eq. 10 as printed, α = 0.2 to the end": replace(
                text, projection=ShrinkAsPrinted(b=0.1), closing_alpha=0.2
            ),
        }
    return made


def rows(*, quick: bool = False) -> list[Row]:
    """Every variant on digits; the quick ones on few, with a quarter of the moves."""
    n = 16 if quick else 1000
    made = []
    for norm in ("l2", "linf"):
        for name, attack in variants(norm).items():
            shorter = replace(attack, moves=50, closing=5, restarts=min(attack.restarts, 2)) if quick else attack
            run = plain(f"{norm} {name}", shorter, norm)
            made.append(Row(name=f"{norm} {name}", subject="mnist", n=n, batch=n, run=run))
    return made


def summarise(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Median margin, how far above the best known of each sample, and success, by norm and variant."""
    tables: dict[str, Any] = {}
    for norm in ("l2", "linf"):
        found = {name: np.array(o.distance) for name, o in outcomes.items() if name.startswith(f"{norm} ")}
        if not found:
            continue
        n = min(map(len, found.values()))
        least = np.min([distance[:n] for distance in found.values()], axis=0)
        right = (least > 0) & np.isfinite(least)
        tables[norm] = {"n": int(right.sum()), "rows": {}}
        for name, distance in found.items():
            there = distance[:n][right]
            excess = there / least[right] - 1
            tables[norm]["rows"][name.removeprefix(f"{norm} ")] = {
                "settings": outcomes[name].settings,
                "median": finite(np.median(there)),
                "excess_median": finite(np.median(excess)),
                "found": float(np.isfinite(there).mean()),
                "passes": float(np.mean(np.array(outcomes[name].passes)[:n][right])),
            }
    return tables
