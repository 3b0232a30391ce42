"""Success rates at given distances (the paper's Tables 1 and 2), for each data set."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marginattack.attacks import FGSM, PGD, Attack, CarliniWagner, DeepFool, MarginAttack, Race
from marginattack.attacks.presets import preset, with_exact_ball
from marginattack.reproduce import paper
from marginattack.reproduce.runner import Batch, Outcome, Row, RunBatch, attack_row, run_cw

RACE = "Race, 400 passes"
EXACT = "MarginAttack, exact ball"  # the paper's settings for ℓ∞ as the first author implemented the second design
OURS = {
    "MarginAttack": "the paper's settings", EXACT: "the paper's settings, exact ball",
    "MarginAttack, our defaults": "our defaults", RACE: "Race",
}  # fmt: skip
TOLERANCE = 1e-6  # relative: points of attacks within a radius lie on it up to rounding

# Samples per row, and samples per batch, of full runs: attacks from many starts, from one, and CW
SIZES = {
    "mnist": {"many": (10_000, 2000), "one": (10_000, 5000), "CW": (1000, 1000)},
    "cifar10": {"many": (1000, 500), "one": (10_000, 1000), "CW": (1000, 500)},
    "imagenet": {"many": (500, 100), "one": (500, 100), "CW": (500, 100)},
}
# Quick runs on two cores: samples, in one batch; of CW fewer, with fewer steps than its 2,000
QUICK = {"mnist": 40, "cifar10": 12, "imagenet": 4}
QUICK_CW, QUICK_CW_STEPS = {"mnist": 12, "cifar10": 6, "imagenet": 4}, {"mnist": 150, "cifar10": 60, "imagenet": 20}


def rows(data: str, *, quick: bool = False) -> list[Row]:
    """The rows of both tables for one data set; PGD after MarginAttack, whose quantiles it needs."""
    starts = 1 if quick else paper.STARTS[data]

    def size(kind: str) -> dict[str, Any]:
        n, batch_size = SIZES[data][kind]
        if quick:
            n = batch_size = (QUICK_CW if kind == "CW" else QUICK)[data]
        return {"model": data, "n": n, "batch_size": batch_size}

    def row(norm: str, name: str, attack: Attack, kind: str = "one") -> Row:
        return attack_row(f"{norm} {name}", attack, norm, **size(kind))

    table = []
    for norm in ("l2", "linf"):
        published = replace(preset(f"{data}-{norm}"), restarts=starts)
        table.append(row(norm, "MarginAttack", published, "many"))
        if (exact := with_exact_ball(published)) != published:
            table.append(row(norm, EXACT, exact, "many"))
        table.append(row(norm, "MarginAttack, our defaults", MarginAttack()))
        table.append(row(norm, RACE, Race(passes=400)))
    table.append(row("l2", "DeepFool", DeepFool(steps=200)))
    table.append(row("linf", "FGSM", FGSM()))
    pgd = PGD(steps=30 if quick else 200, step=paper.PGD_RATE[data] / paper.UNIT[data], relative=False, restarts=starts)

    def pgd_levels(batch: Batch) -> list[float]:
        return [*levels(data, "linf"), *quantiles(data, batch.outcome_of("linf MarginAttack"))]

    table.append(Row(name="linf PGD", run=run_pgd("linf PGD", pgd, pgd_levels), **size("many")))
    searches, steps = paper.CW_SEARCHES[data], QUICK_CW_STEPS[data] if quick else 2000
    cw = CarliniWagner(searches=searches[-1], steps=steps, rate=paper.CW_RATE[data], initial=1e-2)
    table.append(Row(name="l2 CW", run=run_cw(cw, {number: f"l2 CW {number}" for number in searches}), **size("CW")))
    return table


def levels(data: str, norm: str) -> tuple[float, ...]:
    """The paper's distances, for pixels in [0, 1]."""
    return tuple(level / paper.UNIT[data] for level in paper.LEVELS[norm][data])


def quantiles(data: str, outcome: Outcome) -> tuple[float, ...]:
    """The 0.2, 0.4, 0.6 and 0.8 quantiles of MarginAttack's margins; of the first batch, so that they do not change."""
    first = np.array(outcome.distance[: SIZES[data]["many"][1]])
    return tuple(float(q) for q in np.quantile(first, paper.QUANTILES, method="lower"))


def run_pgd(name: str, attack: PGD, levels_of: Callable[[Batch], Sequence[float]]) -> RunBatch:
    """PGD at each level in increasing order; a sample that is fooled at one level is not attacked at larger ones."""

    def run(batch: Batch) -> dict[str, Outcome]:
        all_levels = sorted({*levels_of(batch)})
        best, passes, seconds = np.full(len(batch.images), np.inf), np.zeros(len(batch.images), int), 0.0
        for level in all_levels:
            left = np.flatnonzero(best > level * (1 + TOLERANCE))
            if level <= 0 or len(left) == 0:
                continue
            part = batch.select(left.tolist()).measure(replace(attack, eps=level), "linf")
            best[left] = np.minimum(best[left], part.distance)
            passes[left] += part.passes
            seconds += part.seconds
        settings = batch.describe(attack).replace(f"eps={attack.eps}", "eps=each level")
        outcome = Outcome(settings=settings, distance=best.tolist(), passes=passes.tolist(), seconds=seconds)
        outcome.extra["levels"] = all_levels
        return {name: outcome}

    return run


def summarise(data: str, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Success rates of each row at the paper's levels and at our quantiles, compared with those of our attacks."""
    summary: dict[str, Any] = {}
    for norm in ("l2", "linf"):
        found = {name.removeprefix(f"{norm} "): outcomes[name] for name in outcomes if name.startswith(f"{norm} ")}
        if "MarginAttack" not in found:
            continue
        own = quantiles(data, found["MarginAttack"])
        all_levels = (*levels(data, norm), *own)
        summary[norm] = {
            "levels": list(levels(data, norm)),
            "quantiles": list(own),
            "rows": {
                name: _rates(outcome, all_levels) | {"beside": compare_hits(name, found, all_levels)}
                for name, outcome in found.items()
            },
        }
    return summary


def _rates(outcome: Outcome, all_levels: Sequence[float]) -> dict[str, Any]:
    """The hits of one row at each level, and their cost."""
    distance = np.array(outcome.distance)
    hits = [count_hits(distance, level) for level in all_levels]
    not_found = int(np.isinf(distance).sum())
    return outcome.summary() | {"hits": hits, "wrong": count_hits(distance, 0.0), "not_found": not_found}


def compare_hits(name: str, outcomes: dict[str, Outcome], all_levels: Sequence[float]) -> dict[str, Any]:
    """Hits of an attack and of each of ours, on the samples that both measured."""

    def hits(attack: str, n: int) -> list[int]:
        return [count_hits(np.array(outcomes[attack].distance[:n]), level) for level in all_levels]

    compared = {}
    for ours in (each for each in OURS if each in outcomes and each != name):
        n = min(len(outcomes[name].distance), len(outcomes[ours].distance))
        compared[ours] = {"n": n, "theirs": hits(name, n), "ours": hits(ours, n)}
    return compared


def count_hits(distance: "np.ndarray", level: float) -> int:
    """The number of samples with an adversarial point within this distance, including those misclassified."""
    return int((distance <= level * (1 + TOLERANCE)).sum())
