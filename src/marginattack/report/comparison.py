"""Comparison of runs on the inputs that they share, matched by the fingerprint of the pixels."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from marginattack.analysis.statistics import PairedComparison, compare_paired
from marginattack.errors import InputError
from marginattack.report.series import Series, load_series
from marginattack.report.text import DEFAULT_EPS
from marginattack.storage.run_folder import RunFolder


def compare_runs(stores: Sequence[RunFolder], eps: Sequence[float] = ()) -> dict[str, Any]:
    """Compare the first run with each other one, norm by norm; if the other has several attacks, only with the same.

    Returns ``rows``, one per pair, and ``missing``: norms and attacks of one run that have no match in the other.
    """
    first, *others = (load_series(store) for store in stores)
    rows, missing, shared = [], [], False
    for store, other in zip(stores[1:], others, strict=True):
        by_norm = len(other) == len({each.norm for each in other})
        pairs = [(a, b) for a in first for b in other if a.norm == b.norm and (by_norm or a.part == b.part)]
        shared |= bool(pairs)
        rows += [row for a, b in pairs if (row := _compare_pair(a, b, eps)) is not None]
        for mine, theirs, side in ((first, 0, store), (other, 1, stores[0])):
            unmatched = [each for each in mine if all(pair[theirs] is not each for pair in pairs)]
            missing += [{"norm": each.norm, "attack": each.part.attack, "in": str(each.store.path),
                         "not_in": str(side.path)} for each in unmatched]  # fmt: skip
    if not rows:
        what = "correctly classified input" if shared else "norm and attack"
        raise InputError(f"{stores[0].path} shares no {what} with the other runs: choose runs on the same data")
    return {"rows": rows, "missing": missing}


def _compare_pair(a: Series, b: Series, eps: Sequence[float]) -> dict[str, Any] | None:
    """The margins of samples that both classify correctly, and the accuracies of each run on all of its samples."""
    paired = compare_series(a, b)
    if paired is None:
        return None
    levels = np.array(eps or DEFAULT_EPS.get(a.norm, ()), float)
    inputs = [{*zip(s.columns["input"].tolist(), s.columns["target"].tolist(), strict=True)} for s in (a, b)]
    robust = zip(levels.tolist(), a.robust_accuracy(levels), b.robust_accuracy(levels), strict=True)
    return {
        "a": str(a.store.path), "b": str(b.store.path), "norm": a.norm, "attack_a": a.part.attack,
        "attack_b": b.part.attack, "samples_a": a.seen, "samples_b": b.seen, "shared": len(inputs[0] & inputs[1]),
        "accuracy_a": a.accuracy, "accuracy_b": b.accuracy, **asdict(paired),
        "robust": [{"eps": level, "a": one.accuracy, "b": two.accuracy} for level, one, two in robust],
    }  # fmt: skip


def compare_series(a: Series, b: Series) -> PairedComparison | None:
    """Compare two series on the samples that both measured and classify correctly; None where there are none."""
    left, right = _index_margins(a), _index_margins(b)
    shared = [key for key in left if key in right]
    if not shared:
        return None
    return compare_paired(np.array([left[key] for key in shared]), np.array([right[key] for key in shared]))


def _index_margins(series: Series) -> dict[tuple[str, int], float]:
    """Index the measured margins by input and target; repeated inputs count once."""
    columns = [series.columns[name][series.measured].tolist() for name in ("input", "target", "distance")]
    return {(fingerprint, target): distance for fingerprint, target, distance in zip(*columns, strict=True)}
