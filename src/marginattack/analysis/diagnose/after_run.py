"""check_results: checks of the rows of a finished run."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from marginattack.analysis.diagnose.findings import Finding, make_finding, prioritise

Columns: TypeAlias = Mapping[str, Any]

# Attacks within a fixed radius, along one path or with a fixed number of pixels may find nothing.
MAY_FAIL = {"fgsm", "bim", "pgd", "daa", "logit-difference", "one-pixel"}
# Attacks that end at their first adversarial point: it is found in the last tenth of the passes by design.
ENDS_AT_FIRST = {"deepfool", "jsma"}
# MarginAttack's steps shrink until its end, where it also settles on the boundary: on three healthy networks up to 17 %
# of the samples gain 2 % in the last tenth of the default's passes, and up to 98 % with a quarter of the passes.
LATE_GAIN, LATE_SHARE = 0.02, 0.2
CONTRADICTION = 0.01  # by how much a margin in a smaller norm must exceed that in a larger one
MANY_REJECTED = 0.10  # the share of rejected rows from which they are grave
TINY = 1e-6  # a margin, in pixels of [0, 1], that rounding alone may cross
MIN_ROWS = 8
NORM_ORDER = ("linf", "l2", "l1")


def check_results(columns: Columns) -> list[Finding]:
    """Check the rows of a run for contradictions and signs of failed attacks.

    Args:
        columns: The columns of a run, of one or several attacks and norms.

    Returns:
        The findings, the most important first; empty if there is none.

    Example:
        >>> for finding in check_results(RunFolder("run").all_columns()):  # doctest: +SKIP
        ...     print(finding.line())
    """
    columns = {name: np.asarray(column) for name, column in columns.items()}
    n = len(columns["distance"])
    if n == 0:
        return []
    columns = {"rejected": np.zeros(n, dtype=bool), "target": np.full(n, -1), **columns}
    findings = [*_check_consistency(columns), *_check_accuracy(columns), *_check_rejected(columns)]
    names = np.array([f"{attack} {norm}" for attack, norm in zip(columns["attack"], columns["norm"], strict=True)])
    for name in dict.fromkeys(names.tolist()):
        rows = {key: column[(names == name) & _attacked(columns)] for key, column in columns.items()}
        if len(rows["distance"]):
            findings += [*_check_success(name, rows), *_check_convergence(name, rows), *_check_tiny(name, rows)]
    return prioritise([*findings, *_check_norm_order(columns)])


def _attacked(columns: Columns) -> Any:
    """Whether the attack had something to do: the input is classified correctly, or not yet as the target."""
    prediction, target = columns["prediction"], columns["target"]
    return np.where(target >= 0, prediction != target, prediction == columns["label"])


def _attack_of(name: str) -> str:
    """Return the attack's name, without settings and norm."""
    return name.split(" ")[0].split("(")[0].lower()


def _check_consistency(columns: Columns) -> Iterator[Finding]:
    """Report successes without a distance or the reverse, and misclassified inputs at another distance than zero."""
    distance, success = columns["distance"], columns["success"].astype(bool)
    wrong = np.isnan(distance) | (distance < 0) | (success != np.isfinite(distance))
    wrong |= ~_attacked(columns) & success & (distance != 0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        seen = f"contradictions, first in row {row}: success is {success[row]} at distance {distance[row]:.4g}"
        yield make_finding("inconsistent-rows", seen, int(wrong.sum()), len(wrong))


def _check_accuracy(columns: Columns) -> Iterator[Finding]:
    """Report a run in which no input is classified correctly."""
    n, correct = len(columns["label"]), columns["prediction"] == columns["label"]
    if n >= MIN_ROWS and not correct.any() and not (columns["target"] >= 0).any():
        yield make_finding("accuracy-zero", "no input is classified correctly", n, n)


def _check_rejected(columns: Columns) -> Iterator[Finding]:
    """Report adversarial points that the verification rejected."""
    n, number = len(columns["rejected"]), int(columns["rejected"].sum())
    if number:
        grade = "grave" if number > MANY_REJECTED * n else "warning"
        yield make_finding("rejected", f"verification rejected {number} adversarial points", number, n, grade=grade)


def _check_success(name: str, rows: Columns) -> Iterator[Finding]:
    """Report attacks without a radius that failed, and inputs that cost no pass. Rejected rows are reported apart."""
    n = len(rows["distance"])
    passes = rows["forwards"] + rows.get("backwards", 0) if "forwards" in rows else np.ones(n, dtype=np.int64)
    failed = ~rows["success"].astype(bool)
    missed = failed & ~rows["rejected"].astype(bool) & (passes > 0)
    if missed.any() and _attack_of(name) not in MAY_FAIL:
        share = 1 - missed.mean()
        seen = f"{name} found an adversarial point for {share:.1%} of the inputs, at any distance"
        yield make_finding("not-found", seen, int(missed.sum()), n, grade="grave" if share < 0.5 else "warning")
    idle = failed & (passes == 0)
    if idle.any():
        yield make_finding("nothing-tried", f"{name} spent no pass on inputs that it did not solve", int(idle.sum()), n)


def _check_convergence(name: str, rows: Columns) -> Iterator[Finding]:
    """Report distances that fell substantially in the last tenth of the passes."""
    if "distance_at_90pct" not in rows or _attack_of(name) in MAY_FAIL | ENDS_AT_FIRST:
        return
    solved = np.isfinite(rows["distance"]) & (rows["distance"] > 0) & ~np.isnan(rows["distance_at_90pct"])
    distance, before = rows["distance"][solved], rows["distance_at_90pct"][solved]
    fell = before - distance > LATE_GAIN * distance
    if fell.sum() >= max(3, LATE_SHARE * len(fell)):
        gain = float(np.median(before[fell] / distance[fell] - 1))
        what = "the first points were found" if np.isinf(gain) else f"distances fell by {gain:.1%} (median)"
        seen = f"{name}: {what} in the last tenth of the passes"
        yield make_finding("not-converged", seen, int(fell.sum()), len(fell))


def _check_tiny(name: str, rows: Columns) -> Iterator[Finding]:
    """Report margins that rounding alone may cross."""
    tiny = (rows["distance"] > 0) & (rows["distance"] < TINY)
    if tiny.sum() >= max(3, 0.05 * len(tiny)):
        seen = f"{name}: margins below {TINY:g}, in the median {np.median(rows['distance'][tiny]):.1e}"
        yield make_finding("tiny-margins", seen, int(tiny.sum()), len(tiny))


def _check_norm_order(columns: Columns) -> Iterator[Finding]:
    """Report margins of one input in two norms that contradict each other."""
    if "id" not in columns:
        return
    used = _attacked(columns) & np.isfinite(columns["distance"])
    keys = zip(*(columns[name][used] for name in ("attack", "id", "target", "norm")), strict=True)
    margins = {
        (str(attack), int(row), int(target), str(norm)): float(distance)
        for (attack, row, target, norm), distance in zip(keys, columns["distance"][used], strict=True)
        if _attack_of(str(attack)) not in MAY_FAIL
    }
    worst, wrong = 1.0, set()
    for (attack, row, target, norm), distance in margins.items():
        for larger in NORM_ORDER[NORM_ORDER.index(norm) + 1 :] if norm in NORM_ORDER else ():
            other = margins.get((attack, row, target, larger))
            if other is not None and distance > other * (1 + CONTRADICTION) + TINY:
                wrong.add((attack, row, target))
                worst = max(worst, distance / other)
    if wrong:
        seen = f"the margin in a smaller norm exceeds that in a larger norm, by a factor of up to {worst:.3g}"
        yield make_finding("norms-out-of-order", seen, len(wrong), len({key[:3] for key in margins}))
