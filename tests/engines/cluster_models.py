"""Models that fail in the workers of a cluster only; named as file.py:factory."""

import contextlib
import os
import signal
import sys
from pathlib import Path

from run_models import Slow, Small
from torch import Tensor, nn

POISON = 0.123  # the first pixel of an image on which workers fail


def in_worker() -> bool:
    return Path(sys.argv[0]).name == "default_worker.py"


class Fragile(Small):
    """Kills its worker once, and fails on a poisoned image as long as the file $POISONED exists."""

    def forward(self, images: Tensor) -> Tensor:
        if in_worker():
            with contextlib.suppress(FileExistsError):
                Path(os.environ["FRAGILE"]).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            poisoned = (images[:, 0, 0, 0] - POISON).abs() < 1e-7
            if Path(os.environ["POISONED"]).exists() and bool(poisoned.any()):
                raise RuntimeError("these pixels are poisoned")
        return super().forward(images)


def fragile() -> nn.Module:
    return Fragile().eval()


def slow() -> nn.Module:
    return Slow().eval()
