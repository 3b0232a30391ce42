"""Models for runs of the real command line, where they are named as file.py:factory."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

SHAPE = (3, 6, 6)
CLASSES = 4
TRAPPED = 0.123  # the first pixel of the image on which a model fails or hangs


class Small(nn.Module):
    """A smooth network with fixed weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(108, 24), nn.Tanh(), nn.Linear(24, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(4 * images - 2)
        return logits


class Slow(Small):
    """The same network, slow enough to be killed while it measures shards of at most eight images."""

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.004 if len(images) <= 8 else 0)
        return super().forward(images)


class Hungry(Small):
    """The same network, but gradients of more than eight inputs do not fit into memory."""

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > 8 and images.requires_grad:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(images)


class Trapped(Small):
    """The same network, but once session $SESSION of the manifest $TRAP measures, it fails on an image, or hangs."""

    def forward(self, images: Tensor) -> Tensor:
        if bool(((images[:, 0, 0, 0] - TRAPPED).abs() < 1e-7).any()):
            trap = Path(os.environ["TRAP"])
            if trap.exists() and trap.read_text().count('"began"') >= int(os.environ["SESSION"]):
                time.sleep(3600 if "HANG" in os.environ else 0)
                raise RuntimeError("no kernel for\nthese pixels")
        return super().forward(images)


def small() -> nn.Module:
    return Small().eval()


def other() -> nn.Module:
    return Small(1).eval()


def slow() -> nn.Module:
    return Slow().eval()


def hungry() -> nn.Module:
    return Hungry().eval()


def trapped() -> nn.Module:
    return Trapped().eval()


def rectified() -> nn.Module:
    """Piecewise linear, with few neurons."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 6), nn.ReLU(), nn.Linear(6, CLASSES)).eval()


def attentive() -> nn.Module:
    """With an operation that bounds do not cover."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, CLASSES), nn.Softsign()).eval()


def half() -> nn.Module:
    return Small().eval().to(torch.bfloat16)


def double() -> nn.Module:
    return Small().eval().double()
