"""Comparison of two results on the samples that they share."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.analysis.statistics import PairedComparison, compare_paired
from marginattack.core.stated import stated_bounds, stated_fixed, stated_scale
from marginattack.errors import InputError
from marginattack.margins import Margins

SPACE = {"bounds": stated_bounds, "scale": stated_scale, "fixed": stated_fixed}


@dataclass(frozen=True, kw_only=True)
class Comparison(PairedComparison):
    """Margins b compared with margins a; ``n`` and all statistics of margins cover samples correct in both.

    Attributes:
        norm: the norm of the margins.
        shared: the number of samples in both.
        accuracy_a: the clean accuracy of a on them.
        accuracy_b: that of b.
        robust_a: per ε, the robust accuracy of a on them.
        robust_b: that of b.
    """

    norm: str
    shared: int
    accuracy_a: float
    accuracy_b: float
    robust_a: dict[float, float] = field(default_factory=dict)
    robust_b: dict[float, float] = field(default_factory=dict)

    def __str__(self) -> str:
        interval = f"[{self.ratio_low:.4f}, {self.ratio_high:.4f}]"
        lines = [
            f"{self.norm}, {self.shared} shared samples, {self.n} correct in both",
            f"accuracy {self.accuracy_a:.1%} → {self.accuracy_b:.1%}",
            f"median margin {self.median_a:.4g} → {self.median_b:.4g}, ratio {self.median_ratio:.4f} {interval}",
            f"smaller / equal / larger: {self.smaller} / {self.ties} / {self.larger}, p = {self.p:.2g}",
        ]
        return "\n".join(
            [*lines, *(f"at ε = {e:g}: {self.robust_a[e]:.1%} → {self.robust_b[e]:.1%}" for e in self.robust_a)]
        )


def compare(a: Margins, b: Margins, *, eps: float | Sequence[float | int] = ()) -> Comparison:
    """Compare two results, such as of two models or two attacks, on the samples that they share.

    Samples are matched by their pixels, or by their position if a result has no inputs.

    Args:
        a: The baseline.
        b: The result that is compared with it, in the same norm.
        eps: One distance for robust accuracy, or several.

    Returns:
        Accuracies, medians, the ratio of the margins b / a with its 95 % interval, and a signed-rank test.

    Raises:
        InputError: The norms differ, or the settings that decide what a margin is (bounds, scale, fixed, targeted,
            within, enough); the results share no sample, or they cannot be matched.

    Example:
        >>> import torch
        >>> import marginattack as ma
        >>> x, y = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), [0, 0]
        >>> l2 = [ma.measure(torch.nn.Identity(), x, y, norm="l2", budget=budget) for budget in (4, 40)]
        >>> ma.compare(*l2).shared
        2
    """
    if a.norm != b.norm:
        raise InputError(f"the norms are {a.norm} and {b.norm}: compare margins in the same norm")
    if problem := why_incomparable(a.settings, b.settings):
        raise InputError(problem)
    if not len(a) or not len(b):
        raise InputError(f"the results have {len(a)} and {len(b)} samples: compare results with at least one each")
    eps = (float(eps),) if isinstance(eps, int | float) else eps
    rows_a, rows_b = _match(a, b)
    a, b = a[rows_a], b[rows_b]
    correct_a, correct_b = (each.prediction == each.label for each in (a, b))
    both = correct_a & correct_b
    paired = compare_paired(a.distance[both].numpy(), b.distance[both].numpy())
    return Comparison(
        **{each.name: getattr(paired, each.name) for each in fields(paired)}, norm=a.norm, shared=len(a),
        accuracy_a=float(correct_a.double().mean()), accuracy_b=float(correct_b.double().mean()),
        robust_a={e: a.robust_accuracy(e) for e in eps}, robust_b={e: b.robust_accuracy(e) for e in eps},
    )  # fmt: skip


def why_incomparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Which of the settings that decide what a margin is differs between two results; empty if none does."""
    left, right = map(_meaning, (a, b))
    spaces = {name: (stated(a), stated(b)) for name, stated in SPACE.items()}
    left |= {name: str(one) for name, (one, _) in spaces.items()}
    right |= {name: str(two) for name, (_, two) in spaces.items()}
    same = {name: one.agrees(two) for name, (one, two) in spaces.items()}
    differing = (name for name in left if not same.get(name, left[name] == right[name]))
    if (name := next(differing, None)) is None:
        return ""
    other = right[name] if right[name] != left[name] else "others of other features"
    return f"{name} is {left[name]} and {other}: compare margins that were measured with the same {name}"


def _meaning(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, besides those of the space, that decide what a margin is."""
    radii = {name: settings.get(name) for name in ("within", "enough")}
    shown = {name: "not set" if radius is None else f"{radius:.4g}" for name, radius in radii.items()}
    return {"targeted": bool(settings.get("targeted")), **shown}


def _match(a: Margins, b: Margins) -> tuple[Tensor, Tensor]:
    """The rows of both results that are the same sample."""
    if a.original is None or b.original is None:
        if len(a) != len(b) or not a.label.equal(b.label):
            sizes = f"{len(a)} and {len(b)} samples"
            raise InputError(f"results of {sizes} have no inputs to match them by: measure the same samples in order")
        return torch.arange(len(a)), torch.arange(len(a))
    rows = {digest: row for row, digest in enumerate(_digests(b.original))}
    pairs = [(row, rows[digest]) for row, digest in enumerate(_digests(a.original)) if digest in rows]
    if not pairs:
        raise InputError("the results share no input: compare results on the same data")
    left, right = torch.tensor(pairs).T
    return left, right


def _digests(images: Tensor) -> list[bytes]:
    pixels = np.ascontiguousarray(images.float().numpy()).reshape(len(images), -1)
    return [hashlib.blake2b(image.data, digest_size=16).digest() for image in pixels]
