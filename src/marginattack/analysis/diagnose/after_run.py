"""check_results: checks of the rows of a finished run, all at once or shard by shard."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from marginattack.analysis.diagnose.findings import Finding, make_finding, prioritise

Columns: TypeAlias = Mapping[str, Any]

# Attacks within a fixed radius, along one path or with a fixed number of pixels may find nothing.
MAY_FAIL = {"fgsm", "bim", "pgd", "daa", "logit-difference", "one-pixel", "apgd", "square"}
# Attacks that end at their first adversarial point find it in the last tenth of the passes by design.
ENDS_AT_FIRST = {"deepfool", "jsma"}
# MarginAttack's steps shrink until its end, when it also settles on the boundary: on three normal networks up to 17 %
# of the samples gain 2 % in the last tenth of the default's passes, and up to 98 % with a quarter of the passes.
LATE_GAIN, LATE_SHARE = 0.02, 0.2
CONTRADICTION = 0.01  # by how much a margin in a smaller norm must exceed that in a larger one
MANY_REJECTED = 0.10  # a larger share of rejected rows is grave
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
        >>> for finding in check_results(RunFolder("run").table().to_pydict()):  # doctest: +SKIP
        ...     print(finding.line())
    """
    checks = ResultChecks()
    checks.add(columns)
    return checks.findings()


@dataclass
class _Attacked:
    """Statistics of the rows that one attack under one norm attacked."""

    rows: int = 0
    missed: int = 0  # without an adversarial point, despite some passes
    idle: int = 0  # without an adversarial point and without a pass
    solved: int = 0
    gains: list[Any] = field(default_factory=list)  # of distances that fell substantially in the last tenth
    tiny: list[Any] = field(default_factory=list)  # distances


class ResultChecks:
    """Checks rows in chunks, and keeps only statistics. All rows of an input must be in the same chunk."""

    def __init__(self) -> None:
        self.rows = self.correct = self.rejected = self.inconsistent = self.out_of_order = self.ordered = 0
        self.targeted, self.contradiction, self.worst = False, "", 1.0
        self.attacked: dict[str, _Attacked] = defaultdict(_Attacked)

    def add(self, columns: Columns) -> None:
        """Check some rows, of one or several attacks and norms."""
        columns = {name: np.asarray(column) for name, column in columns.items()}
        n = len(columns["distance"])
        columns = {"rejected": np.zeros(n, dtype=bool), "target": np.full(n, -1), **columns}
        self._add_consistency(columns)
        self.rows += n
        self.correct += int((columns["prediction"] == columns["label"]).sum())
        self.targeted |= bool((columns["target"] >= 0).any())
        self.rejected += int(columns["rejected"].sum())
        names = np.array([f"{attack} {norm}" for attack, norm in zip(columns["attack"], columns["norm"], strict=True)])
        for name in dict.fromkeys(names.tolist()):
            rows = {key: column[(names == name) & _attacked(columns)] for key, column in columns.items()}
            if len(rows["distance"]):
                _add_attacked(self.attacked[name], name, rows)
        self._add_norm_order(columns)

    def findings(self) -> list[Finding]:
        """The findings about all rows, the most important first; empty if there is none."""
        found = []
        if self.inconsistent:
            found.append(make_finding("inconsistent-rows", self.contradiction, self.inconsistent, self.rows))
        if self.rows >= MIN_ROWS and not self.correct and not self.targeted:
            found.append(make_finding("accuracy-zero", "no input is classified correctly", self.rows, self.rows))
        if self.rejected:
            grade = "grave" if self.rejected > MANY_REJECTED * self.rows else "warning"
            seen = f"verification rejected {self.rejected} adversarial points"
            found.append(make_finding("rejected", seen, self.rejected, self.rows, grade=grade))
        for name, kept in self.attacked.items():
            found += [*_judge_success(name, kept), *_judge_convergence(name, kept), *_judge_tiny(name, kept)]
        if self.out_of_order:
            seen = f"the margin in a smaller norm exceeds that in a larger norm, by a factor of up to {self.worst:.3g}"
            found.append(make_finding("norms-out-of-order", seen, self.out_of_order, self.ordered))
        return prioritise(found)

    def _add_consistency(self, columns: Columns) -> None:
        """Count successes without a distance or the reverse, and misclassified inputs at another distance than zero."""
        distance, success = columns["distance"], columns["success"].astype(bool)
        wrong = np.isnan(distance) | (distance < 0) | (success != np.isfinite(distance))
        wrong |= ~_attacked(columns) & success & (distance != 0)
        if wrong.any() and not self.inconsistent:
            row = int(np.flatnonzero(wrong)[0])
            where = f"first in row {self.rows + row}"
            self.contradiction = f"contradictions, {where}: success is {success[row]} at distance {distance[row]:.4g}"
        self.inconsistent += int(wrong.sum())

    def _add_norm_order(self, columns: Columns) -> None:
        """Count margins of one input in two norms that contradict each other."""
        if "id" not in columns or len(set(columns["norm"])) < 2:
            return
        used = _attacked(columns) & np.isfinite(columns["distance"])
        keys = zip(*(columns[name][used] for name in ("attack", "id", "target", "norm")), strict=True)
        margins = {
            (str(attack), int(row), int(target), str(norm)): float(distance)
            for (attack, row, target, norm), distance in zip(keys, columns["distance"][used], strict=True)
            if not may_fail(str(attack))
        }
        wrong = set()
        for (attack, row, target, norm), distance in margins.items():
            for larger in NORM_ORDER[NORM_ORDER.index(norm) + 1 :] if norm in NORM_ORDER else ():
                other = margins.get((attack, row, target, larger))
                if other is not None and distance > other * (1 + CONTRADICTION) + TINY:
                    wrong.add((attack, row, target))
                    self.worst = max(self.worst, distance / other)
        self.out_of_order += len(wrong)
        self.ordered += len({key[:3] for key in margins})


def _attacked(columns: Columns) -> Any:
    """Whether each row was attacked: the input is classified correctly, or not yet as the target."""
    prediction, target = columns["prediction"], columns["target"]
    return np.where(target >= 0, prediction != target, prediction == columns["label"])


def may_fail(name: str) -> bool:
    """Whether an attack may find nothing, since it searches within a radius (as NAME@EPS does) or too little."""
    return "@" in name or _attack_of(name) in MAY_FAIL


def _attack_of(name: str) -> str:
    """Return the attack's name, without settings and norm."""
    return name.split(" ")[0].split("(")[0].lower()


def _add_attacked(kept: _Attacked, name: str, rows: Columns) -> None:
    """Count rows without an adversarial point, and keep gains at the end and tiny margins."""
    n, distance = len(rows["distance"]), rows["distance"]
    passes = rows["forwards"] + rows.get("backwards", 0) if "forwards" in rows else np.ones(n, dtype=np.int64)
    failed = ~rows["success"].astype(bool)
    kept.rows += n
    kept.missed += int((failed & ~rows["rejected"].astype(bool) & (passes > 0)).sum())
    kept.idle += int((failed & (passes == 0)).sum())
    kept.tiny.append(distance[(distance > 0) & (distance < TINY)])
    if "distance_at_90pct" in rows and not may_fail(name) and _attack_of(name) not in ENDS_AT_FIRST:
        before = rows["distance_at_90pct"]
        solved = np.isfinite(distance) & (distance > 0) & ~np.isnan(before)
        before, distance = before[solved], distance[solved]
        fell = before - distance > LATE_GAIN * distance
        kept.solved += len(distance)
        kept.gains.append(before[fell] / distance[fell] - 1)


def _judge_success(name: str, kept: _Attacked) -> Iterator[Finding]:
    """Report attacks without a radius that failed, and inputs without a pass. Rejected rows are reported separately."""
    if kept.missed and not may_fail(name):
        share = 1 - kept.missed / kept.rows
        seen = f"{name} found an adversarial point for {share:.1%} of the inputs, at any distance"
        yield make_finding("not-found", seen, kept.missed, kept.rows, grade="grave" if share < 0.5 else "warning")
    if kept.idle:
        yield make_finding(
            "nothing-tried", f"{name} spent no pass on inputs that it did not solve", kept.idle, kept.rows
        )


def _judge_convergence(name: str, kept: _Attacked) -> Iterator[Finding]:
    """Report distances that fell substantially in the last tenth of the passes."""
    gains = np.concatenate([*kept.gains, np.array([])])
    if len(gains) >= max(3, LATE_SHARE * kept.solved):
        gain = float(np.median(gains))
        what = "the first points were found" if np.isinf(gain) else f"distances fell by {gain:.1%} (median)"
        yield make_finding("not-converged", f"{name}: {what} in the last tenth of the passes", len(gains), kept.solved)


def _judge_tiny(name: str, kept: _Attacked) -> Iterator[Finding]:
    """Report margins that rounding alone may cross."""
    tiny = np.concatenate([*kept.tiny, np.array([])])
    if len(tiny) >= max(3, 0.05 * kept.rows):
        seen = f"{name}: margins below {TINY:g}, in the median {np.median(tiny):.1e}"
        yield make_finding("tiny-margins", seen, len(tiny), kept.rows)
