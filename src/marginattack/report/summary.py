"""Summaries of one series: its classes, pairs of classes, and samples worth inspecting."""

from dataclasses import dataclass

import numpy as np

from marginattack.analysis.statistics import lower_quantile, median_interval
from marginattack.report.series import Series

MIN_CLASS_SIZE = 8  # margins of a class; in smaller ones no sample is called unusual
MAX_Z_SCORE = -3.0  # a sample with a lower robust z-score of its log margin is unusual
MAX_SUSPICIOUS = 12  # samples per series and reason


@dataclass(frozen=True, kw_only=True)
class ClassSummary:
    """Margins of one class; quartiles include infinite margins."""

    number: int
    name: str
    n: int
    not_found: int
    low: float
    median: float
    high: float
    interval: tuple[float, float]  # of the median, at 95 % for all classes together; NaN for too few samples
    adversarial_class: str  # the most common one
    share: float  # of adversarial examples that end there


def summarize_classes(series: Series) -> list[ClassSummary]:
    """Summarize the margins of every class that occurs, by number."""
    names, rows = series.classes, []
    every = np.unique(series.columns["label"][series.measured]).tolist()
    confidence = 1 - 0.05 / max(len(every), 1)  # Bonferroni's correction: the worst of many classes is picked out
    label, to, distance = (series.columns[name] for name in ("label", "adversarial_label", "distance"))
    for number in every:
        mask = series.measured & (label == number)
        margins, ends = distance[mask], to[mask & series.found]
        counts = np.bincount(ends, minlength=1)
        rows.append(ClassSummary(
            number=number, name=names[number], n=len(margins), not_found=int(np.isinf(margins).sum()),
            low=lower_quantile(margins, 0.25), median=float(np.median(margins)), high=lower_quantile(margins, 0.75),
            interval=median_interval(margins, confidence) if len(margins) >= MIN_CLASS_SIZE else (np.nan, np.nan),
            adversarial_class=names[int(counts.argmax())] if len(ends) else "",
            share=float(counts.max() / max(len(ends), 1)),
        ))  # fmt: skip
    return rows


def count_class_pairs(series: Series) -> list[tuple[int, int, int, float]]:
    """Return class, adversarial class, number of samples and median margin of each pair that occurs, by class."""
    if not series.found.any():
        return []
    label, to, distance = (series.columns[name][series.found] for name in ("label", "adversarial_label", "distance"))
    pairs, index = np.unique(np.stack([label, to]), axis=1, return_inverse=True)
    margins = np.split(distance[np.argsort(index, kind="stable")], np.cumsum(np.bincount(index))[:-1])
    return [(*pair, len(group), float(np.median(group))) for pair, group in zip(pairs.T.tolist(), margins, strict=True)]


def list_smallest(series: Series, count: int) -> list[dict[str, str | int | float]]:
    """List the samples with the smallest margins: id, name if there are names, classes and distance."""
    rows = np.flatnonzero(series.found)
    rows = rows[np.argsort(series.columns["distance"][rows], kind="stable")][:count].tolist()
    names, column = series.classes, series.columns
    return [
        {"id": int(column["id"][row]), **({"name": str(column["name"][row])} if "name" in column else {}),
         "label": names[int(column["label"][row])], "adversarial_label": names[int(column["adversarial_label"][row])],
         "distance": float(column["distance"][row])}
        for row in rows
    ]  # fmt: skip


def find_unusual(series: Series) -> list[tuple[int, str]]:
    """Return row and reason of samples with a margin far below their class's: a robust z-score of its logarithm."""
    from scipy.stats import median_abs_deviation

    label, distance = series.columns["label"], series.columns["distance"]
    unusual: list[tuple[float, int, str]] = []
    for number in np.unique(label[series.found]).tolist():
        rows = np.flatnonzero(series.found & (label == number))
        if len(rows) < MIN_CLASS_SIZE:
            continue
        deviation = np.log(distance[rows]) - np.median(np.log(distance[rows]))
        z = deviation / max(float(median_abs_deviation(deviation, scale="normal")), 1e-6)
        for i in np.flatnonzero(z < MAX_Z_SCORE).tolist():
            reason = f"{np.exp(deviation[i]):.2g} of its class's median margin (z = −{-z[i]:.1f})"
            unusual.append((float(z[i]), int(rows[i]), reason))
    return [(row, reason) for _, row, reason in sorted(unusual)[:MAX_SUSPICIOUS]]


def find_misclassified(series: Series) -> list[tuple[int, str]]:
    """Return row and reason of the misclassified samples with the highest confidence."""
    label, confidence = series.columns["label"], series.columns["confidence"]
    wrong = np.flatnonzero((label != series.columns["prediction"]) & (not series.targeted))
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")][:MAX_SUSPICIOUS]
    return [(row, f"misclassified with confidence {confidence[row]:.1%}") for row in wrong.tolist()]


def compare_classes(rows: list[ClassSummary]) -> dict[str, ClassSummary | float] | None:
    """Return the weakest and the strongest class by median margin, and the ratio of their medians with its interval.

    Only classes with enough samples for an interval count; None if there are fewer than two. The intervals of the
    medians hold simultaneously, so the ratio of their ends is an interval of the ratio.
    """
    known = sorted((row for row in rows if not np.isnan(row.interval[0])), key=lambda row: row.median)
    if len(known) < 2:
        return None
    weak, strong = known[0], known[-1]
    pairs = (
        (strong.median, weak.median),
        (strong.interval[0], weak.interval[1]),
        (strong.interval[1], weak.interval[0]),
    )
    ratio, low, high = (over / under if 0 < under < np.inf else float("nan") for over, under in pairs)
    return {"weakest": weak, "strongest": strong, "ratio": ratio, "ratio_low": max(low, 1.0), "ratio_high": high,
            "known": float(len(known))}  # fmt: skip
