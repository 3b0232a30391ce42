"""A callback for PyTorch Lightning: margins of a fixed subset every few epochs."""

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from marginattack.core.norms import NormLike
from marginattack.errors import MissingDependencyError
from marginattack.integrations.training import measure_epoch

try:
    if (
        "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    ):  # a trainer takes its own callbacks
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    hint = "pip install 'marginattack[training]'"
    raise MissingDependencyError(f"this module needs Lightning ({error.name} is not installed): {hint}") from None


class MarginCallback(Callback):  # type: ignore[misc]
    """Measures a fixed subset at the end of training epochs and logs the figures with the module's loggers.

    The figures are those of ``training.measure_epoch``, such as "margin/median", which ``ModelCheckpoint`` and
    ``EarlyStopping`` can monitor in epochs that are measured.

    Args:
        images: The subset.
        labels: Their classes.
        every: Measure after every so many epochs.
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
        eps: float | Sequence[float] = (), budget: int = 100,
    ) -> None:  # fmt: skip
        self.images, self.labels = images, labels
        self.options: dict[str, Any] = {
            "every": every, "seconds": seconds, "norm": norm, "eps": eps, "budget": budget
        }  # fmt: skip

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure and log, in the first process."""
        if trainer.is_global_zero:
            values = measure_epoch(pl_module, self.images, self.labels, trainer.current_epoch, **self.options)
            if values:
                pl_module.log_dict(values, rank_zero_only=True)
