"""A callback for PyTorch Lightning: margins of a fixed subset every few epochs."""

import sys
from typing import Any

import numpy as np
from torch import Tensor

from marginattack.core.norms import NormLike
from marginattack.errors import MissingDependencyError
from marginattack.evaluation import check_distances
from marginattack.integrations.training import is_due, log_curve, measure_subset, summarize

try:
    # A trainer only accepts callbacks of its own package.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    hint = "pip install 'marginattack[training]'"
    raise MissingDependencyError(f"this module needs Lightning ({error.name} is not installed): {hint}") from None


class MarginCallback(Callback):  # type: ignore[misc]
    """Measures a fixed subset at the end of training epochs and logs metrics with the module's loggers.

    The metrics are those of ``training.measure_epoch``, such as "margin/median", which ``ModelCheckpoint`` and
    ``EarlyStopping`` can monitor in epochs that are measured. TensorBoard and W&B also get a histogram of the margins.

    Args:
        images: The subset.
        labels: Their classes.
        every: Measure every this many epochs.
        seconds: The time limit per epoch.
        norm: As for ``ma.measure``.
        eps: A distance, or several, at which robust accuracy is logged.
        budget: Forwards + backwards per sample.

    Example:
        >>> import torch
        >>> from marginattack.integrations.lightning import MarginCallback
        >>> callback = MarginCallback(torch.rand(8, 3), torch.zeros(8, dtype=torch.int64), every=5, eps=[0.1])
    """

    def __init__(
        self, images: Tensor, labels: Tensor, *, every: int = 1, seconds: float = 30.0, norm: NormLike = "l2",
        eps: Any = (), budget: int = 100,
    ) -> None:  # fmt: skip
        self.images, self.labels, self.every = images, labels, every
        self.eps = check_distances(eps) if np.size(eps) else ()
        self.options: dict[str, Any] = {"seconds": seconds, "norm": norm, "budget": budget}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure and log, in the first process."""
        if trainer.is_global_zero and is_due(trainer.current_epoch, self.every):
            margins = measure_subset(pl_module, self.images, self.labels, **self.options)
            pl_module.log_dict(summarize(margins, self.eps), rank_zero_only=True)
            for logger in trainer.loggers:
                log_curve(logger.experiment, margins, trainer.global_step)
