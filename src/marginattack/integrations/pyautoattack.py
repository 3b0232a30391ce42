"""pyautoattack's class with our attack: change the import, keep the script.

``from marginattack.integrations.pyautoattack import AutoAttack`` instead of ``from pyautoattack import AutoAttack``. As
there, evaluations return pairs of images and predicted classes, and progress goes to a logger.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from marginattack.integrations import autoattack

LOGGER = logging.getLogger("auto-attack")


class AutoAttack(autoattack.AutoAttack):
    """The robust accuracy of a model within one radius, with the interface of pyautoattack.

    Args:
        model: Maps images in [0, 1] to logits.
        attacks: With version="custom": names of attacks, as ``attacks_to_run`` of ``autoattack.AutoAttack``.
        device: Where a model without tensors runs; others run where their tensors are.
        eps: The radius.
        norm: "Linf", "L2" or "L1".
        seed: Seed of the random draws, by default 0, so that results are reproducible.
        version: "standard", "plus", "rand" or "custom", as for ``autoattack.AutoAttack``.
        budget: Forwards + backwards per sample of Race; by default that of the version.

    Raises:
        InputError: An argument is invalid.

    Example:
        >>> import torch
        >>> from marginattack.integrations.pyautoattack import AutoAttack
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> adversary = AutoAttack(torch.nn.Identity(), norm="Linf", eps=0.3, budget=100)
        >>> points, predicted = adversary.run_standard_evaluation(images, labels, batch_size=2)
        >>> predicted
        tensor([0, 1])
    """

    def __init__(
        self, model: nn.Module | Callable[[Tensor], Tensor], *, attacks: Sequence[str] | None = None,
        device: Any = "cpu", eps: float = 0.3, norm: str = "Linf", seed: int | None = None, version: str = "standard",
        budget: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            model, norm, eps, seed, attacks_to_run=attacks or (), version=version, device=device, budget=budget
        )

    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = True,
        state_path: str | Path | None = None, strict: bool = False, *, batch_size: int | None = None,
    ) -> Any:  # fmt: skip
        """As ``autoattack.AutoAttack.run_standard_evaluation``, but returns the images and the predicted classes."""
        return super().run_standard_evaluation(
            x_orig, y_orig, bs, return_labels, state_path, strict, batch_size=batch_size
        )

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = True, strict: bool = False, *,
        batch_size: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run each attack on all samples; per attack the images and the predicted classes."""
        return super().run_standard_evaluation_individual(
            x_orig, y_orig, bs, return_labels, strict, batch_size=batch_size
        )

    def _log(self, line: str) -> None:
        LOGGER.debug(line)
