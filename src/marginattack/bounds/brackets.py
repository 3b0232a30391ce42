"""Brackets: a lower and an upper bound of each margin, one row per sample."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.core.stated import stated_bounds
from marginattack.errors import InputError
from marginattack.margins import CLOSED, Margins

AGREE = 1e-6  # relative: by how much a lower bound may exceed a margin, since solvers have tolerances


def check_agreement(lower: Tensor, upper: Tensor) -> None:
    """Raise InputError for a certified radius beyond the distance of an adversarial point: one of them is wrong."""
    if bool((wrong := lower > (1 + AGREE) * upper).any()):
        row = int(wrong.nonzero()[0])
        known = f"sample {row} is certified to {lower[row]:.4g}, but has a margin of {upper[row]:.4g}"
        raise InputError(f"{known}: compute bounds and margins with the same model and inputs")


def check_inputs(margins: Margins, images: Tensor) -> None:
    """Raise InputError for margins of other inputs than these, if they have stored theirs."""
    if margins.original is None:
        return
    original = margins.original.to(images.device)
    if original.shape != images.shape:
        shapes = f"shape {tuple(original.shape)}, not {tuple(images.shape)}"
        raise InputError(f"the margins are of inputs of {shapes}: measure and bound the same inputs")
    coarser = min(original.dtype, images.dtype, key=_digits)
    if bool((other := (original.to(coarser) != images.to(coarser)).flatten(1).any(1)).any()):
        row = int(other.nonzero()[0])
        raise InputError(f"input {row} of the margins is another than that of the bounds: give the same, in one order")


def _digits(dtype: torch.dtype) -> float:
    """The precision of a type: numbers are told apart by one part in so many."""
    return 1 / torch.finfo(dtype).eps if dtype.is_floating_point else float("inf")


def states(margins: Margins, name: str) -> bool:
    """Whether margins, or the run they are from, were measured with a ``scale`` or with ``fixed`` features."""
    return name in margins.settings or name in margins.settings.get("space", {})


@dataclass(frozen=True, kw_only=True, eq=False)
class Brackets:
    """Lower and upper bounds of the distance to the decision boundary; no adversarial point is nearer than ``lower``.

    Attributes:
        norm: "l1", "l2" or "linf".
        lower: (n,) float64, certified; 0 if the input is misclassified or nothing could be certified, infinite if the
            whole box is classified correctly.
        upper: (n,) float64, the distance of a known adversarial point; infinite if none is known.
        adversarial: shaped like the images; the point at distance ``upper`` if it is known, else the image itself.
        per_class: (n, classes) float64, the certified radius towards each class; infinite for the label.
        adversarial_label: (n,) the predicted class of ``adversarial``.
        label: (n,) the true class.
        prediction: (n,) the predicted class of the input.
        certified_by: the method behind each lower bound; "" if it is 0.
        original: the inputs.
        seconds: the time spent on all samples.
        settings: what the bounds were computed with.

    Example:
        >>> import torch
        >>> import marginattack as ma
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> margins = ma.measure(torch.nn.Flatten(), images, labels, norm="linf")
        >>> ma.bound(torch.nn.Flatten(), images, labels, norm="linf", upper=margins)
        Brackets(linf, n=2, closed=100.00%, median lower=0.2745, median upper=0.275)
    """

    norm: str
    lower: Tensor
    upper: Tensor
    adversarial: Tensor
    adversarial_label: Tensor
    per_class: Tensor
    label: Tensor
    prediction: Tensor
    certified_by: tuple[str, ...]
    original: Tensor
    seconds: float
    settings: dict[str, Any]

    def __len__(self) -> int:
        return len(self.lower)

    def __repr__(self) -> str:
        s = self.summary()
        sides = f"median lower={s['median_lower']:.4g}, median upper={s['median_upper']:.4g}"
        return f"Brackets({self.norm}, n={s['n']}, closed={s['closed']:.2%}, {sides})"

    @property
    def closed(self) -> Tensor:
        """(n,) bool, whether both bounds agree to 1 %."""
        return (self.lower >= (1 - CLOSED) * self.upper) | (self.upper == 0)

    def add_to(self, margins: Margins) -> Margins:
        """Return margins with these bounds or their own, whichever is better: ``lower``, ``certified_by``, ``closed``.

        An adversarial point that is nearer than the attack's replaces it.

        Args:
            margins: What ``ma.measure`` returned for the same samples.

        Returns:
            The same margins with their bounds.

        Raises:
            InputError: The margins are of other samples, another norm or box, targeted, or measured with ``scale`` or
                ``fixed``; or they contradict the bounds.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> model, images = torch.nn.Flatten(), torch.tensor([[0.9, 0.2], [0.5, 0.1]])
            >>> margins = ma.measure(model, images, [0, 0], norm="linf")
            >>> margins = ma.bound(model, images, [0, 0], norm="linf", upper=margins).add_to(margins)
            >>> margins.closed.tolist(), margins.certified_by
            ([True, True], ('alpha', 'alpha'))
        """
        if margins.norm != self.norm or not torch.equal(margins.label, self.label):
            raise InputError("the margins are of other samples, or in another norm: give those of the same inputs")
        check_inputs(margins, self.original)
        self._check_settings(margins)
        nearer = (self.upper < margins.distance) & (self.adversarial_label != self.label)
        distance = torch.where(nearer, self.upper, margins.distance)
        check_agreement(self.lower, distance)
        better = self.lower > margins.lower
        pixels = nearer.view(-1, *[1] * (margins.adversarial.ndim - 1))
        return replace(
            margins, distance=distance, success=margins.success | nearer, rejected=margins.rejected & ~nearer,
            adversarial=torch.where(pixels, self.adversarial, margins.adversarial),
            adversarial_label=torch.where(nearer, self.adversarial_label, margins.adversarial_label),
            lower=torch.where(better, self.lower, margins.lower).minimum(distance),
            certified_by=tuple(
                new if use else old
                for new, old, use in zip(self.certified_by, margins.certified_by, better.tolist(), strict=True)
            ),
        )  # fmt: skip

    def _check_settings(self, margins: Margins) -> None:
        """Raise InputError for margins of another distance, box or goal than these bounds."""
        for name in ("scale", "fixed"):
            if states(margins, name):
                raise InputError(f"the margins were measured with {name}, which bounds do not support: leave it out")
        if margins.settings.get("targeted"):
            raise InputError("the margins are targeted, but bounds hold for any class: measure without targets")
        if "bounds" not in margins.settings and "shard" not in margins.settings:  # neither measured nor of a run
            return
        theirs, own = stated_bounds(margins.settings), stated_bounds(self.settings)
        if not theirs.agrees(own):
            box, other = (list(each.ends) if each.ends else str(each) for each in (theirs, own))
            boxes = f"{box}, but these bounds hold in {other}"
            different = boxes if box != other else f"{box}, but with other bounds per feature"
            raise InputError(f"the margins were measured in the box {different}: measure and bound in the same box")

    def certified_accuracy(self, eps: float | Sequence[float | int]) -> Any:
        """Return the share of samples that are classified correctly under every perturbation of size ``eps`` or less.

        Args:
            eps: one distance or several, in the unit of the pixels.

        Returns:
            A float for one distance, a list of floats for several; at most the robust accuracy under any attack.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
            >>> ma.bound(torch.nn.Flatten(), images, labels, norm="linf").certified_accuracy([0.1, 0.3, 0.5])
            [1.0, 0.5, 0.0]
        """
        levels = torch.as_tensor(eps, dtype=torch.float64)
        certified = (self.lower >= levels[..., None]) & (self.prediction == self.label)
        return certified.to(torch.float64).mean(-1).tolist()

    def summary(self) -> dict[str, float | int]:
        """Return the main figures.

        Returns:
            ``n`` samples, the share that is ``closed``, and over correctly classified samples ``median_lower``,
            ``median_upper`` and the median of their ratio, ``median_ratio``.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> ma.bound(torch.nn.Flatten(), torch.tensor([[0.9, 0.2]]), [0], norm="linf").summary()["n"]
            1
        """
        correct = self.prediction == self.label
        lower, upper = self.lower[correct], self.upper[correct]
        ratio = torch.where(lower == upper, 1.0, lower / upper)
        middle = [float(np.median(each)) if len(each) else float("nan") for each in (lower, upper, ratio)]
        names = ("median_lower", "median_upper", "median_ratio")
        return {"n": len(self), "closed": float(self.closed.double().mean()), **dict(zip(names, middle, strict=True))}
