"""Preprocessing that belongs to the model: resize, crop and normalise in front of it, differentiable."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from marginattack.errors import InputError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

NORMALIZATIONS: dict[str, Statistics] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


class Preprocess(nn.Module):
    """A model that takes pixels in [0, 1] as they are stored: resized, cropped and normalised before it sees them.

    The shorter side is resized to ``resize`` pixels (bilinear, antialiased), the middle ``crop`` × ``crop`` is cut out,
    and (x − mean) / std follows, one number a channel or one for all. Gradients flow through all three, so that
    distances are those of the pixels that were given, not of what the model makes of them.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        statistics: Statistics | None = None,
        resize: int | None = None,
        crop: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("resize", resize), ("crop", crop)):
            if value is not None and value < 1:
                raise InputError(f"--{name} is {value}: give a number of pixels, at least 1")
        self.model = model
        self.resize, self.crop = resize, crop
        mean, std = statistics or (None, None)
        # Not part of the state: the weights are the model's alone.
        self.register_buffer("mean", _column(mean), persistent=False)
        self.register_buffer("std", _column(std), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(self.prepared(images))
        return logits

    def prepared(self, images: Tensor) -> Tensor:
        """What the model sees of these images."""
        x = images
        if self.resize is not None:
            x = _resized(x, self.resize)
        if self.crop is not None:
            x = _cropped(x, self.crop)
        if self.mean is None or self.std is None:
            return x
        channels = len(self.mean)
        if channels > 1 and (x.ndim != 4 or x.shape[1] != channels):
            shape = tuple(x.shape[1:])
            raise InputError(f"normalisation has {channels} channels, but images have shape {shape}: give one number, or "
                          "one a channel, to --normalize")  # fmt: skip
        return (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)


def parse_normalize(text: str) -> Statistics | None:
    """The statistics that ``--normalize`` names: a known set, MEAN/STD such as 0.5/0.25 or 0.5,0.4,0.3/0.2, or none."""
    if text == "none":
        return None
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    hint = f"give {', '.join(NORMALIZATIONS)}, none, auto or MEAN/STD such as 0.5/0.25 or 0.5,0.5,0.5/0.2,0.2,0.2"
    means, slash, stds = text.partition("/")
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in (means, stds))
    except ValueError:
        raise InputError(f"--normalize is {text!r}: {hint}") from None
    if not slash or not all(map(math.isfinite, (*mean, *std))):
        raise InputError(f"--normalize is {text!r}: {hint}")
    if len(mean) != len(std) and 1 not in (len(mean), len(std)):
        raise InputError(f"--normalize is {text!r}, {len(mean)} means for {len(std)} deviations: they must pair up")
    if min(std) <= 0:
        raise InputError(f"--normalize is {text!r}, whose deviation {min(std):g} is not above 0: {hint}")
    channels = max(len(mean), len(std))
    return mean * (channels // len(mean)), std * (channels // len(std))


def _column(values: tuple[float, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)


def _resized(images: Tensor, size: int) -> Tensor:
    """Images whose shorter side is ``size`` and whose proportions are kept, as torchvision's Resize does."""
    height, width = _sides(images, "resize", size)
    short, long = min(height, width), max(height, width)
    if short == size:
        return images
    longer = int(size * long / short)
    shape = (size, longer) if height <= width else (longer, size)
    return functional.interpolate(images, shape, mode="bilinear", align_corners=False, antialias=True)


def _cropped(images: Tensor, size: int) -> Tensor:
    """The middle ``size`` × ``size`` of each image."""
    height, width = _sides(images, "crop", size)
    if min(height, width) < size:
        raise InputError(f"--crop is {size}, but images are {height}×{width}: crop less, or --resize {size} first")
    top, left = round((height - size) / 2), round((width - size) / 2)
    return images[:, :, top : top + size, left : left + size]


def _sides(images: Tensor, option: str, size: int) -> tuple[int, int]:
    if images.ndim != 4:
        shape = tuple(images.shape)
        raise InputError(f"--{option} {size} needs images of shape (n, channels, height, width), but they are {shape}")
    return int(images.shape[2]), int(images.shape[3])
