"""Comparison of runs on the inputs that they share, matched by the fingerprint of the pixels."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from marginattack.analysis.comparison import why_incomparable
from marginattack.analysis.statistics import PairedComparison, compare_paired
from marginattack.core.rounding import rounded_up
from marginattack.errors import InputError
from marginattack.report.series import Series, load_series
from marginattack.report.text import default_levels
from marginattack.storage.run_folder import RunFolder


def compare_runs(stores: Sequence[RunFolder], eps: Sequence[float] = ()) -> dict[str, Any]:
    """Compare the first run with every other run, norm by norm; a run of several attacks, attack by attack.

    Returns ``rows``, one per pair, and ``missing``: norms and attacks of one run that have no match in the other.
    """
    first, *others = (load_series(store) for store in stores)
    rows, missing, shared = [], [], False
    for store, other in zip(stores[1:], others, strict=True):
        by_norm = len(other) == len({each.norm for each in other})
        pairs = [(a, b) for a in first for b in other if a.norm == b.norm and (by_norm or a.part == b.part)]
        problems = {pair: why_incomparable(*map(_settings, pair)) for pair in pairs}
        if pairs and all(problems.values()):
            raise InputError(f"{stores[0].path} and {store.path}: {problems[pairs[0]]}")
        pairs = [pair for pair in pairs if not problems[pair]]
        shared |= bool(pairs)
        rows += [row for a, b in pairs if (row := _compare_pair(a, b, eps)) is not None]
        for mine, theirs, side in ((first, 0, store), (other, 1, stores[0])):
            unmatched = [each for each in mine if all(pair[theirs] is not each for pair in pairs)]
            missing += [{"norm": each.norm, "attack": each.part.attack, "in": str(each.store.path),
                         "not_in": str(side.path)} for each in unmatched]  # fmt: skip
    if not rows:
        what, hint = "correctly classified input", "choose runs on the same data"
        if not shared:
            norms = {each.norm for each in first} & {each.norm for other in others for each in other}
            what, hint = ("attack", "measure with the same one") if norms else ("norm", "measure in the same one")
        raise InputError(f"{stores[0].path} shares no {what} with the other runs: {hint}")
    return {"rows": rows, "missing": missing}


def _settings(series: Series) -> dict[str, Any]:
    """The settings of a series as ``Margins`` states them."""
    space = series.store.manifest["identity"].get("space", {})
    return {"space": space, "targeted": series.targeted, "within": series.radius}


def _compare_pair(a: Series, b: Series, eps: Sequence[float]) -> dict[str, Any] | None:
    """The margins of samples that both classify correctly, and the accuracies of each run on all of its samples."""
    paired = compare_series(a, b)
    if paired is None:
        return None
    levels = np.array(eps or default_levels([a, b]), float)
    inputs = [{*zip(s.columns["input"].tolist(), s.columns["target"].tolist(), strict=True)} for s in (a, b)]
    robust = zip(levels.tolist(), a.robust_accuracy(levels), b.robust_accuracy(levels), strict=True)
    return {
        "a": str(a.store.path), "b": str(b.store.path), "norm": a.norm, "attack_a": a.part.attack,
        "attack_b": b.part.attack, "samples_a": a.seen, "samples_b": b.seen, "shared": len(inputs[0] & inputs[1]),
        "accuracy_a": a.accuracy, "accuracy_b": b.accuracy, **asdict(paired),
        "robust": [{"eps": level, "a": one.accuracy, "b": two.accuracy} for level, one, two in robust],
    }  # fmt: skip


def compare_series(a: Series, b: Series) -> PairedComparison | None:
    """Compare two series on the samples that both measured and classify correctly; None if there are none."""
    _, left, right = pair_series(a, b)
    return compare_paired(left, right) if len(left) else None


def pair_series(a: Series, b: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of b that a measured too, and the margins in a and in b; repeated inputs count once."""
    left = {key: a.columns["distance"][row] for key, row in _index_rows(a).items()}
    shared = [(row, left[key]) for key, row in _index_rows(b).items() if key in left]
    rows = np.array([row for row, _ in shared], int)
    return rows, np.array([distance for _, distance in shared], float), b.columns["distance"][rows]


def _index_rows(series: Series) -> dict[tuple[str, int], int]:
    """Index the measured rows by input and target."""
    rows = np.flatnonzero(series.measured)
    columns = [series.columns[name][rows].tolist() for name in ("input", "target")]
    return {(fingerprint, target): row for fingerprint, target, row in zip(*columns, rows.tolist(), strict=True)}


def find_changed_sides(a: Series, b: Series, eps: float) -> dict[str, list[int]]:
    """Return the rows of b that are robust at ``eps`` in one series only, the largest change first."""
    rows, left, right = pair_series(a, b)
    eps = rounded_up(eps)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.abs(np.log(right / left)), kind="stable")
    gained, lost = ((right > eps) & (left <= eps))[order], ((right <= eps) & (left > eps))[order]
    return {"gained": rows[order][gained].tolist(), "lost": rows[order][lost].tolist()}
