"""afterwards: what the rows of a finished run tell about themselves."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from marginattack.analysis.diagnose.causes import Finding, found, settled

Columns: TypeAlias = Mapping[str, Any]

# Attacks within a fixed radius, or along one path or with a fixed number of pixels, may end with nothing.
MAY_FAIL = {"fgsm", "bim", "pgd", "daa", "logit-difference", "one-pixel"}
# Attacks that end with their first adversarial point: it comes in the last tenth by design.
ENDS_AT_FIRST = {"deepfool", "jsma"}
# MarginAttack's steps shrink to its end, where it also settles on the boundary: on three healthy networks up to 17 % of
# the samples gain 2 % in the last tenth of the default's passes, and up to 98 % with a quarter of them.
FALLING, FALLING_SHARE = 0.02, 0.2
CONTRADICTION = 0.01  # by how much a margin in a smaller norm must exceed that in a larger one
MANY = 0.10  # the share of rejected rows that makes them grave
TINY = 1e-6  # a margin, in pixels of [0, 1], that rounding alone may cross
FEWEST = 8
ORDER = ("linf", "l2", "l1")


def afterwards(columns: Columns) -> list[Finding]:
    """What is suspicious in the rows of a run, of one or several attacks and norms; nothing, if nothing is."""
    columns = {name: np.asarray(column) for name, column in columns.items()}
    findings: list[Finding] = []
    if len(columns["distance"]) == 0:
        return findings
    findings += _inconsistent(columns) + _wrong_throughout(columns) + _refuted(columns)
    for part, rows in _parts(columns):
        measured = {name: column[rows & _measured(columns)] for name, column in columns.items()}
        if len(measured["distance"]):
            findings += _not_found(part, measured) + _untouched(part, measured)
            findings += _falling(part, measured) + _tiny(part, measured)
    return settled(findings + _order(columns))


def _parts(columns: Columns) -> Iterator[tuple[str, Any]]:
    """Each attack and norm, and its rows."""
    names = [f"{attack} {norm}" for attack, norm in zip(columns["attack"], columns["norm"], strict=True)]
    for name in dict.fromkeys(names):
        yield name, np.array([other == name for other in names])


def _measured(columns: Columns) -> Any:
    """Rows that the attack had to work for: classified rightly, or not yet as the target."""
    untargeted = columns["prediction"] == columns["label"]
    target = columns.get("target")
    return untargeted if target is None else np.where(target >= 0, columns["prediction"] != target, untargeted)


def _minimal(part: str) -> bool:
    """Whether an attack looks for the nearest point, however far that is."""
    return _name(part) not in MAY_FAIL


def _name(part: str) -> str:
    """The attack's name, without its settings or norm."""
    return part.split(" ")[0].split("(")[0].lower()


def _inconsistent(columns: Columns) -> list[Finding]:
    """Rows that say two things: found at no distance, not found at one, misclassified at another than zero."""
    distance, success = columns["distance"], columns["success"].astype(bool)
    wrong = np.isnan(distance) | (distance < 0) | (success != np.isfinite(distance))
    wrong |= ~_measured(columns) & success & (distance != 0)
    if not wrong.any():
        return []
    first = int(np.flatnonzero(wrong)[0])
    seen = (
        f"success and distance contradict each other, first in row {first}: {success[first]} at {distance[first]:.4g}"
    )
    return [found("inconsistent-rows", seen, int(wrong.sum()), len(wrong))]


def _wrong_throughout(columns: Columns) -> list[Finding]:
    """No input is classified rightly."""
    right = columns["prediction"] == columns["label"]
    targeted = "target" in columns and bool((columns["target"] >= 0).any())
    if len(right) < FEWEST or right.any() or targeted:
        return []
    return [found("accuracy-zero", "no input is classified rightly", len(right), len(right))]


def _refuted(columns: Columns) -> list[Finding]:
    """Adversarial points that did not hold when they were looked at again."""
    rejected = columns["rejected"].astype(bool) if "rejected" in columns else np.zeros(0, dtype=bool)
    number = int(rejected.sum())
    if not number:
        return []
    grade = "grave" if number > MANY * len(rejected) else "warning"
    seen = f"{number} adversarial points did not hold in the check after the run"
    return [found("rejected", seen, number, len(rejected), grade=grade)]


def _not_found(part: str, rows: Columns) -> list[Finding]:
    """A search without a radius that failed; rejected rows have their own finding."""
    rejected = rows["rejected"].astype(bool) if "rejected" in rows else np.zeros(len(rows["distance"]), dtype=bool)
    failed = ~rows["success"].astype(bool) & ~rejected & (_spent(rows) > 0)
    if not _minimal(part) or not failed.any():
        return []
    share = 1 - failed.mean()
    grade = "grave" if share < 0.5 else "warning"
    seen = f"{part} found an adversarial point for {share:.1%} of the inputs, at any distance"
    return [found("not-found", seen, int(failed.sum()), len(failed), grade=grade)]


def _spent(rows: Columns) -> Any:
    """Passes a sample; one where the run does not say."""
    if "forwards" not in rows:
        return np.ones(len(rows["distance"]), dtype=np.int64)
    return rows["forwards"] + rows.get("backwards", 0)


def _untouched(part: str, rows: Columns) -> list[Finding]:
    """Inputs to be attacked that cost no pass."""
    idle = (_spent(rows) == 0) & ~rows["success"].astype(bool)
    if not idle.any():
        return []
    return [found("nothing-tried", f"{part} spent no pass on inputs that it did not solve", int(idle.sum()), len(idle))]


def _falling(part: str, rows: Columns) -> list[Finding]:
    """Best distances that fell by more than a little in the last tenth of the passes."""
    if "distance_at_90pct" not in rows or not _minimal(part) or _name(part) in ENDS_AT_FIRST:
        return []
    solved = np.isfinite(rows["distance"]) & (rows["distance"] > 0) & ~np.isnan(rows["distance_at_90pct"])
    distance, late = rows["distance"][solved], rows["distance_at_90pct"][solved]
    fell = late - distance > FALLING * distance
    if fell.sum() < max(3, FALLING_SHARE * len(fell)):
        return []
    typical = float(np.median(late[fell] / distance[fell] - 1))
    size = "the first points were found" if np.isinf(typical) else f"the best distance fell by {typical:.1%} (median)"
    seen = f"{part}: in the last tenth of the passes {size}"
    return [found("not-converged", seen, int(fell.sum()), len(fell))]


def _tiny(part: str, rows: Columns) -> list[Finding]:
    """Margins that rounding alone may cross."""
    tiny = (rows["distance"] > 0) & (rows["distance"] < TINY)
    if tiny.sum() < max(3, 0.05 * len(tiny)):
        return []
    seen = f"{part}: margins below {TINY:g}, the median of these {np.median(rows['distance'][tiny]):.1e}"
    return [found("tiny-margins", seen, int(tiny.sum()), len(tiny))]


def _order(columns: Columns) -> list[Finding]:
    """Margins of one input in two norms that contradict each other."""
    if "id" not in columns:
        return []
    target = columns.get("target", np.full(len(columns["id"]), -1))
    use = _measured(columns) & np.isfinite(columns["distance"])
    keys = zip(columns["attack"], columns["id"], target, columns["norm"], strict=True)
    table = {
        (attack, int(row), int(goal), str(norm)): float(distance)
        for (attack, row, goal, norm), distance, used in zip(keys, columns["distance"], use, strict=True)
        if used and _minimal(str(attack))
    }
    worst, wrong = 1.0, set()
    for (attack, row, goal, norm), distance in table.items():
        for larger in ORDER[ORDER.index(norm) + 1 :] if norm in ORDER else ():
            other = table.get((attack, row, goal, larger))
            if other is not None and distance > other * (1 + CONTRADICTION) + TINY:
                wrong.add((attack, row, goal))
                worst = max(worst, distance / other)
    if not wrong:
        return []
    seen = f"the margin in a smaller norm is larger than in a larger norm, by up to {worst:.3g} times"
    return [found("norms-out-of-order", seen, len(wrong), len({key[:3] for key in table}))]
