"""Our attacks with the interface of torchattacks: ``adversarial = Attack(model)(images, labels)``."""

from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.norms import NormLike, as_norm
from marginattack.core.rounding import rounded_up
from marginattack.errors import InputError
from marginattack.measuring import as_attack, measure
from marginattack.sources.preprocess import Preprocess, Statistics


class Attack:
    """An attack on one model, called with images in [0, 1] and labels.

    Args:
        model: Maps images to logits.
        attack: An attack of this package or its name, as in ``ma.measure``.
        norm: The norm of the distances.
        eps: The radius: images without an adversarial point within it are returned unchanged. None: the nearest point
            at any distance.
        budget: Forwards + backwards per sample.
        seed: Seed of the random draws.

    Example:
        >>> import torch
        >>> from marginattack.integrations.torchattacks import Attack
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> Attack(torch.nn.Identity(), norm="Linf", eps=0.3)(images, labels).argmax(1)
        tensor([0, 1])
    """

    def __init__(
        self, model: nn.Module, attack: Any = "race", *, norm: NormLike = "l2", eps: float | None = None,
        budget: int = 400, seed: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.attack, self.norm = model, as_attack(attack), as_norm(norm)
        self.eps, self.budget, self.seed = eps, budget, seed
        self.targeted = False
        self.statistics: Statistics | None = None

    def set_normalization_used(self, mean: Any, std: Any) -> None:
        """Take images that were normalised with these statistics, and return such images, as torchattacks does."""
        self.statistics = tuple(map(float, mean)), tuple(map(float, std))

    def set_mode_targeted_by_label(self, quiet: bool = False) -> None:
        """Take target classes instead of labels."""
        self.targeted = True

    def set_mode_default(self) -> None:
        """Take labels again."""
        self.targeted = False

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The adversarial images."""
        model, images = self.model, inputs.detach()
        if self.statistics is not None:
            if images.ndim != 4:
                raise InputError(
                    f"inputs have shape {tuple(images.shape)}: normalised inputs must be images (n, c, h, w)"
                )
            mean, std = (torch.tensor(values).to(images)[:, None, None] for values in self.statistics)
            model, images = Preprocess(self.model, statistics=self.statistics).to(images.device), images * std + mean
        others = torch.where(labels == 0, 1, 0)  # a targeted attack does not use the label
        found = measure(
            model, images, others if self.targeted else labels, self.norm, attack=self.attack, budget=self.budget,
            enough=self.eps, targets=labels if self.targeted else None, seed=self.seed, diagnose=False,
        )  # fmt: skip
        points = found.adversarial.to(images)
        if self.eps is not None:
            beyond = (found.distance > rounded_up(self.eps)).to(images.device)
            points[beyond] = images[beyond]
        return points if self.statistics is None else (points - mean) / std
