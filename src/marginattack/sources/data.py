"""Data by name: the samples that are bundled."""

from importlib.resources import as_file, files

import numpy as np
import torch
from torch import Tensor

SAMPLES = {"mnist": "1,000 digits of the MNIST test set, in official order"}


def samples(name: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Bundled images, (n, channels, height, width) in [0, 1], and their labels."""
    if name not in SAMPLES:
        raise ValueError(f"no samples named {name!r}: choose one of {', '.join(SAMPLES)}")
    with as_file(files(__package__) / "samples" / f"{name}.npz") as path, np.load(path, allow_pickle=False) as arrays:
        x, y = torch.from_numpy(arrays["x"][:limit]), torch.from_numpy(arrays["y"][:limit])
    images = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)
    return images.float() / 255, y.long()
