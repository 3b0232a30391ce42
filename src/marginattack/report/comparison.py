"""Comparison of runs on the inputs that they share, matched by the fingerprint of the pixels."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from marginattack.analysis.statistics import PairedComparison, compare_paired
from marginattack.errors import InputError
from marginattack.report.series import Series, load_series
from marginattack.storage.run_folder import RunFolder


def compare_runs(stores: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Compare the first run with each other one, norm by norm; if the other has several attacks, only with the same."""
    first, *others = (load_series(store) for store in stores)
    matches = [
        (a, b) for other in others for a in first for b in other
        if a.norm == b.norm and (a.part.attack == b.part.attack or len(other) == len({each.norm for each in other}))
    ]  # fmt: skip
    compared = [(a, b, pairs) for a, b in matches if (pairs := compare_series(a, b)) is not None]
    if not compared:
        missing = "correctly classified input" if matches else "norm and attack"
        raise InputError(f"{stores[0].path} shares no {missing} with the other runs: choose runs on the same data")
    return [
        {"a": str(a.store.path), "b": str(b.store.path), "norm": a.norm, "attack_a": a.part.attack,
         "attack_b": b.part.attack, **asdict(pairs)}
        for a, b, pairs in compared
    ]  # fmt: skip


def compare_series(a: Series, b: Series) -> PairedComparison | None:
    """Compare two series on the samples that both measured; None where there are none."""
    left, right = _index_margins(a), _index_margins(b)
    shared = [key for key in left if key in right]
    if not shared:
        return None
    return compare_paired(np.array([left[key] for key in shared]), np.array([right[key] for key in shared]))


def _index_margins(series: Series) -> dict[tuple[str, int], float]:
    """Index the measured margins by input and target; repeated inputs count once."""
    columns = [series.columns[name][series.measured].tolist() for name in ("input", "target", "distance")]
    return {(fingerprint, target): distance for fingerprint, target, distance in zip(*columns, strict=True)}
