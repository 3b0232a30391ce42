"""evaluate(): clean and robust accuracy at several distances, from one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from marginattack.analysis.statistics import RobustAccuracy, robust_accuracy
from marginattack.core.classifier import Classifier
from marginattack.core.norms import NormLike, as_norm
from marginattack.errors import InputError
from marginattack.execution.session import Session
from marginattack.margins import Margins
from marginattack.measuring import as_attack, measure
from marginattack.sources.foreign import ModelWithBounds

BUDGET = 2000  # passes per sample: more than the default of ``measure``, since they are spent on robust samples only


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Clean and robust accuracy of a model, with 95 % confidence intervals.

    Attributes:
        norm: the norm of the distances.
        eps: the distances, the smallest first.
        clean: accuracy on the unperturbed inputs: ``accuracy``, its interval from ``low`` to ``high``, and ``hits``,
            the number of samples.
        robust: the same at each distance: samples that are classified correctly and have no adversarial point within
            the distance.
        margins: the adversarial points behind it. Margins above the smallest distance are as ``measure`` returns them;
            smaller ones are not minimised further.

    Example:
        >>> import torch, marginattack as ma
        >>> logits = torch.tensor([[0.9, 0.2], [0.5, 0.1]])
        >>> print(ma.evaluate(torch.nn.Identity(), logits, [0, 0], "linf", eps=[0.1, 0.3]))
        linf, 2 samples   accuracy   95 % interval
        clean              100.00%   34.2% to 100.0%
        eps 0.1            100.00%   34.2% to 100.0%
        eps 0.3             50.00%   9.5% to 90.5%
    """

    norm: str
    eps: tuple[float, ...]
    clean: RobustAccuracy
    robust: tuple[RobustAccuracy, ...]
    margins: Margins

    def as_dict(self) -> dict[str, Any]:
        """Return the accuracies without the margins, ready for JSON."""
        rows = [{"eps": eps, **each._asdict()} for eps, each in zip(self.eps, self.robust, strict=True)]
        settings = self.margins.settings
        return {
            "norm": self.norm, "n": len(self.margins), "clean": self.clean._asdict(), "robust": rows,
            "passes": float((self.margins.forwards + self.margins.backwards).double().mean()),
            "rejected": int(self.margins.rejected.sum()),
            **{name: settings[name] for name in ("attack", "budget", "seed")},
        }  # fmt: skip

    def rows(self) -> list[tuple[str, str, str]]:
        """Return one row of text per distance: its name, the accuracy and the interval."""
        levels = [f"eps {round(255 * e)}/255" if is_fraction(e) else f"eps {e:.4g}" for e in self.eps]
        named = zip(["clean", *levels], [self.clean, *self.robust], strict=True)
        return [(name, f"{each.accuracy:.2%}", f"{each.low:.1%} to {each.high:.1%}") for name, each in named]

    def header(self) -> tuple[str, str, str]:
        """Return the header of ``rows``."""
        n = len(self.margins)
        return f"{self.norm}, {n:,} {'sample' if n == 1 else 'samples'}", "accuracy", "95 % interval"

    def __str__(self) -> str:
        head, *rows = [self.header(), *self.rows()]
        width = max(len(row[0]) for row in (head, *rows))
        return "\n".join(f"{a:<{width}}   {b:>8}   {c}" for a, b, c in (head, *rows))

    __repr__ = __str__


def evaluate(
    model: nn.Module | Classifier | Session | ModelWithBounds, images: Any, labels: Any = None,
    norm: NormLike = "l2", *, eps: Any, budget: int = BUDGET, **options: Any,
) -> Evaluation:  # fmt: skip
    """Evaluate clean and robust accuracy at one or several distances, from one run.

    Each sample is attacked until it has an adversarial point within the smallest distance, or its budget is spent:
    robust samples cost the whole budget, others a few passes. Adversarial points are verified on the plain model.
    Robust accuracy is an upper bound: a stronger attack may find more.

    Args:
        model: As for ``measure``.
        images: As for ``measure``.
        labels: As for ``measure``.
        norm: A single norm, as for ``measure``.
        eps: One distance, or several, such as [2/255, 4/255, 8/255].
        budget: Forwards + backwards per sample, never exceeded.
        options: Further arguments of ``measure``: attack, bounds, scale, fixed, seed, batch, precision, progress,
            randomized, …

    Returns:
        The accuracies with their confidence intervals, and the margins behind them.

    Raises:
        InputError: An argument is invalid, or the model cannot be measured.

    Example:
        >>> import marginattack as ma
        >>> from marginattack.sources.data import samples
        >>> from marginattack.sources.networks import zoo
        >>> images, labels = samples("mnist", 10)
        >>> result = ma.evaluate(zoo("mnist-cnn"), images, labels, norm="Linf", eps=[0.02, 0.3], budget=100)
        >>> [each.accuracy for each in (result.clean, *result.robust)]
        [1.0, 1.0, 0.0]
    """
    levels = check_distances(eps)
    attack = as_attack(options.pop("attack", None))
    radius = getattr(attack, "eps", None)
    if radius is not None and levels != (radius,):
        raise InputError(f"{attack} searches within {radius:.4g}: give eps={radius:.4g} alone, or another attack")
    enough = None if options.get("randomized") else levels[0]
    for name in ("enough", "targets"):
        if name in options:
            raise InputError(f"evaluate searches for any wrong class within eps and takes no {name}: use measure")
    margins = measure(model, images, labels, as_norm(norm), attack=attack, budget=budget, enough=enough, **options)
    return summarize(margins, levels)


def summarize(margins: Margins, eps: Sequence[float]) -> Evaluation:
    """Compute clean and robust accuracy from margins."""
    correct = margins.prediction == margins.label
    distance, n = margins.distance[correct].numpy(), len(margins)
    clean, *robust = robust_accuracy(distance, n, np.array([-1.0, *eps]))
    return Evaluation(norm=margins.norm, eps=tuple(eps), clean=clean, robust=tuple(robust), margins=margins)


def is_fraction(value: float) -> bool:
    """Whether to write a distance as k/255: it is a multiple of 1/255 and not a decimal of four digits."""
    return abs(255 * value - round(255 * value)) < 1e-6 and float(f"{value:.4g}") != float(f"{value:.9g}")


def check_distances(eps: Any) -> tuple[float, ...]:
    """Validate the distances and return them as sorted, distinct numbers."""
    try:
        values = torch.as_tensor(eps, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"eps is {eps!r}: give a distance, or a list of distances such as [2/255, 8/255]") from None
    if len(values) == 0 or not bool((torch.isfinite(values) & (values > 0)).all()):
        raise InputError(f"eps is {eps!r}: give distances above 0, such as [2/255, 8/255]")
    return tuple(sorted(set(values.tolist())))
