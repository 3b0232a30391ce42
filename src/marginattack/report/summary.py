"""Summaries of one series: its classes, pairs of classes, samples worth inspecting, and a sentence to quote."""

from dataclasses import dataclass

import numpy as np

from marginattack.analysis.statistics import lower_quantile
from marginattack.report.series import Series

MIN_CLASS_SIZE = 8  # margins of a class that are needed to call one of them unusual
MAX_Z_SCORE = -3.0  # a sample with a lower robust z-score of its log margin is unusual
MAX_SUSPICIOUS = 24  # samples per series


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
    adversarial_class: str  # the most common one
    share: float  # of adversarial examples that end there


def summarize_classes(series: Series) -> list[ClassSummary]:
    """Summarize the margins of every class that has some, by number."""
    names, rows = series.classes, []
    label, to, distance = (series.columns[name] for name in ("label", "adversarial_label", "distance"))
    for number in np.unique(label[series.measured]).tolist():
        mask = series.measured & (label == number)
        margins, ends = distance[mask], to[mask & series.found]
        counts = np.bincount(ends, minlength=1)
        rows.append(
            ClassSummary(
                number=number, name=names[number], n=len(margins), not_found=int(np.isinf(margins).sum()),
                low=lower_quantile(margins, 0.25), median=float(np.median(margins)), high=lower_quantile(margins, 0.75),
                adversarial_class=names[int(counts.argmax())] if len(ends) else "",
                share=float(counts.max() / max(len(ends), 1)),
            )
        )  # fmt: skip
    return rows


@dataclass(frozen=True, kw_only=True)
class ClassPair:
    """How many samples of class ``start`` have their adversarial example in class ``end``."""

    start: int
    end: int
    n: int
    median: float  # margin


def count_class_pairs(series: Series) -> list[ClassPair]:
    """Count the pairs of class and adversarial class that occur, by their numbers."""
    if not series.found.any():
        return []
    label, to, distance = (series.columns[name][series.found] for name in ("label", "adversarial_label", "distance"))
    pairs, index = np.unique(np.stack([label, to]), axis=1, return_inverse=True)
    margins = np.split(distance[np.argsort(index, kind="stable")], np.cumsum(np.bincount(index))[:-1])
    return [
        ClassPair(start=start, end=end, n=len(group), median=float(np.median(group)))
        for (start, end), group in zip(pairs.T.tolist(), margins, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class SuspiciousSample:
    """A sample that may be mislabelled or ambiguous."""

    row: int  # in the columns
    reason: str
    score: float  # lower is more unusual


def find_suspicious(series: Series) -> list[SuspiciousSample]:
    """Find samples with a margin far below their class's, and the misclassified samples with the highest confidence.

    The margin is judged by the robust z-score of its logarithm: (log d - median) / scaled median absolute deviation.
    """
    from scipy.stats import median_abs_deviation

    label, distance, confidence = (series.columns[name] for name in ("label", "distance", "confidence"))
    unusual: list[SuspiciousSample] = []
    for number in np.unique(label[series.found]).tolist():
        rows = np.flatnonzero(series.found & (label == number))
        if len(rows) < MIN_CLASS_SIZE:
            continue
        deviation = np.log(distance[rows]) - np.median(np.log(distance[rows]))
        z = deviation / max(float(median_abs_deviation(deviation, scale="normal")), 1e-6)
        for i in np.flatnonzero(z < MAX_Z_SCORE):
            reason = f"{np.exp(deviation[i]):.2g} of its class's median margin (z = −{-z[i]:.1f})"
            unusual.append(SuspiciousSample(row=int(rows[i]), reason=reason, score=float(z[i])))
    wrong = [] if series.targeted else np.flatnonzero(label != series.columns["prediction"]).tolist()
    misclassified = [
        SuspiciousSample(
            row=i, reason=f"misclassified with confidence {confidence[i]:.1%}", score=-float(confidence[i])
        )
        for i in wrong
    ]
    listed = sorted(unusual, key=lambda sample: sample.score)[: MAX_SUSPICIOUS // 2]
    return listed + sorted(misclassified, key=lambda sample: sample.score)[: MAX_SUSPICIOUS - len(listed)]


def write_headline(series: Series) -> list[str | float]:
    """Write the sentence that sums up a series; distances remain numbers, which the page shows in its unit."""
    n = len(series.margins)
    if n == 0:
        return ["The model classifies none of these samples correctly: there is no margin to measure."]
    samples = f"the {n:,} targeted samples" if series.targeted else f"the {n:,} correctly classified samples"
    if not np.isfinite(series.median):
        return [f"For {series.not_found:,} of {samples}, no adversarial example was found in {series.symbol}."]
    low, high = series.median_interval
    end = ") of their target class." if series.targeted else ") of another class."
    return [f"Half of {samples} are within {series.symbol} distance ", series.median, " (95 % confidence interval ",
            low, " to ", high, end]  # fmt: skip
