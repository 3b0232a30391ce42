"""Models that misbehave in the workers of a cluster, and nowhere else: named as file.py:factory."""

import contextlib
import os
import signal
import sys
from pathlib import Path

from run_models import Slow, Small
from torch import Tensor, nn

POISON = 0.123  # the first pixel of an image that a worker cannot bear


def in_worker() -> bool:
    return Path(sys.argv[0]).name == "default_worker.py"


class Fragile(Small):
    """Kills its worker once, and fails on a poisoned image as long as the file in $POISONED is there."""

    def forward(self, images: Tensor) -> Tensor:
        if in_worker():
            with contextlib.suppress(FileExistsError):
                Path(os.environ["FRAGILE"]).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            poisoned = (images[:, 0, 0, 0] - POISON).abs() < 1e-7
            if Path(os.environ["POISONED"]).exists() and bool(poisoned.any()):
                raise RuntimeError("these pixels cannot be borne")
        return super().forward(images)


def fragile() -> nn.Module:
    return Fragile().eval()


def slow() -> nn.Module:
    return Slow().eval()
