"""Preprocessing as part of the model: a differentiable resize, crop and normalisation in front of it."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from marginattack.errors import InputError
from marginattack.sources.images import ORIGINAL_SIZE, ImageSize

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation, per channel

NORMALIZATIONS: dict[str, Statistics] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


class Preprocess(nn.Module):
    """A model for stored pixels in [0, 1]: it resizes, crops and normalises them first.

    The shorter side is resized to ``resize`` pixels (bilinear, antialiased), the central ``crop`` × ``crop`` pixels are
    cropped and normalised, (x − mean) / std, per channel or with one number for all. Gradients flow through all three,
    so that distances are between stored pixels, not between the model's inputs.
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
        self.model, self.size = model, ImageSize(resize, crop)
        for name, values in zip(("mean", "std"), statistics or (None, None), strict=True):
            column = None if values is None else torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)
            self.register_buffer(name, column, persistent=False)  # the state_dict holds the model's weights only

    @property
    def input_slope(self) -> float | None:
        """The Lipschitz constant of the preprocessing; None if images are resized."""
        if self.size.resize is not None:
            return None
        return 1.0 if self.std is None else float(1 / self.std.double().min())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(self.normalize(self.fit(images)))
        return logits

    def fit(self, images: Tensor) -> Tensor:
        """Resize and crop, as torchvision's Resize and CenterCrop do."""
        if self.size == ORIGINAL_SIZE:
            return images
        if images.ndim != 4:
            shape = tuple(images.shape)
            raise InputError(f"--resize and --crop need images of shape (n, channels, height, width), not {shape}")
        height, width = images.shape[2:]
        new_width, new_height = self.size.after_resize(width, height)
        left, top, right, bottom = self.size.crop_box(new_width, new_height)
        if (new_width, new_height) != (width, height):
            images = functional.interpolate(images, (new_height, new_width), mode="bilinear", antialias=True)
        return images[:, :, top:bottom, left:right]

    def normalize(self, images: Tensor) -> Tensor:
        """Subtract the mean and divide by the standard deviation."""
        if self.mean is None or self.std is None:
            return images
        channels = len(self.mean)
        if channels > 1 and (images.ndim != 4 or images.shape[1] != channels):
            problem = f"the normalisation has {channels} channels, but images have shape {tuple(images.shape[1:])}"
            raise InputError(f"{problem}: pass --normalize with one number, or one per channel")
        return (images - self.mean.to(images.dtype)) / self.std.to(images.dtype)


def parse_normalize(text: str) -> Statistics | None:
    """Read ``--normalize``: a key of NORMALIZATIONS, MEAN/STD such as 0.5/0.25 or 0.5,0.4,0.3/0.2, or none."""
    if text == "none":
        return None
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    hint = f"give {', '.join(NORMALIZATIONS)}, none, auto or MEAN/STD such as 0.5/0.25 or 0.5,0.5,0.5/0.2,0.2,0.2"
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
        valid = all(map(math.isfinite, (*mean, *std)))
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"--normalize is {text!r}: {hint}")
    if len(mean) != len(std) and 1 not in (len(mean), len(std)):
        raise InputError(f"--normalize is {text!r}: {len(mean)} means and {len(std)} deviations: {hint}")
    if min(std) <= 0:
        raise InputError(f"--normalize is {text!r}: the deviation {min(std):g} is not positive; {hint}")
    channels = max(len(mean), len(std))
    return mean * (channels // len(mean)), std * (channels // len(std))
