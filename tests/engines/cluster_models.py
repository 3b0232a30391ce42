"""Models that fail in the workers of a cluster only; named as file.py:factory."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from run_models import Slow, Small
from torch import Tensor, nn

POISON, STICKY = 0.123, 0.456  # the first pixel of an image on which workers fail, and of one where they hang once


def in_worker() -> bool:
    return Path(sys.argv[0]).name == "default_worker.py"


class Fragile(Small):
    """Kills its worker once, hangs once, and fails on a poisoned image as long as the file $POISONED exists."""

    def forward(self, images: Tensor) -> Tensor:
        if in_worker():
            with contextlib.suppress(FileExistsError):
                Path(os.environ["FRAGILE"]).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            poisoned, sticky = (bool(((images[:, 0, 0, 0] - value).abs() < 1e-7).any()) for value in (POISON, STICKY))
            if Path(os.environ["POISONED"]).exists() and poisoned:
                raise RuntimeError("these pixels are poisoned")
            if sticky:
                with contextlib.suppress(FileExistsError):
                    Path(os.environ["FRAGILE"] + ".hung").touch(exist_ok=False)
                    time.sleep(3600)
        return super().forward(images)


def fragile() -> nn.Module:
    return Fragile().eval()


def slow() -> nn.Module:
    return Slow().eval()
