"""Image files: their headers, their pixels in [0, 1], and resize and crop to the size that a model takes."""

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.sources.common import import_extra

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")  # as in torchvision
FORMATS = ("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP", "GIF")  # no EPS: pillow runs Ghostscript on it
GREY_16_BIT = ("I", "I;16", "I;16L", "I;16B", "I;16N")
GREY = ("1", "L", "LA", "La", *GREY_16_BIT)
COLOUR = ("RGB", "RGBA", "RGBa", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV")
MAX_PIXELS = 89_478_485  # per image; above this pillow warns of a decompression bomb

ImageFile = Path | bytes | Any  # a path, the bytes of a file, or an opened pillow image


class ImageSize(NamedTuple):
    """How an image is fitted: its shorter side is resized (bilinear), then the centre is cropped to a square."""

    resize: int | None
    crop: int | None

    @classmethod
    def parse(cls, text: str) -> "ImageSize":
        """Read ``256/224`` (resize to 256, crop to 224), ``224`` (both), ``256/`` (resize only) or ``/224`` (crop)."""
        match = re.fullmatch(r"([1-9][0-9]{0,4})?(/)?([1-9][0-9]{0,4})?", text, re.ASCII)
        if not match or not (match[1] or match[3]):
            raise InputError(f"--image-size {text!r} is not RESIZE/CROP in pixels: write 256/224, 224, 256/ or /224")
        resize, slash, crop = match.groups()
        return cls(int(resize) if resize else None, int(crop or (0 if slash else resize)) or None)

    def after_resize(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after the resize, rounded as torchvision does."""
        if self.resize is None:
            return width, height
        longer = int(self.resize * max(width, height) / min(width, height))
        return (self.resize, longer) if width <= height else (longer, self.resize)

    def crop_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the centre crop of a resized image."""
        if self.crop is None:
            return 0, 0, width, height
        if min(width, height) < self.crop:
            hint = f"crop less, or resize to {self.crop} first"
            raise InputError(f"{width}x{height} pixels are smaller than the crop of {self.crop}: {hint}")
        left, top = round((width - self.crop) / 2), round((height - self.crop) / 2)
        return left, top, left + self.crop, top + self.crop

    def output_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after resize and crop."""
        width, height = self.after_resize(width, height)
        if width * height > MAX_PIXELS:
            raise InputError(f"it would be resized to {width}x{height} pixels")
        left, top, right, bottom = self.crop_box(width, height)
        return right - left, bottom - top


ORIGINAL_SIZE = ImageSize(None, None)


@contextmanager
def open_image(file: ImageFile) -> Iterator[Any]:
    """Open an image without decoding its pixels. Errors, now or while it is used, become an InputError."""
    pillow = import_extra("PIL.Image", "images")
    try:
        if isinstance(file, pillow.Image):
            yield file
            return
        if isinstance(file, Path) and not file.is_file():  # reading a pipe would block forever
            raise InputError("not a regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
                yield image
    except InputError:
        raise
    except pillow.UnidentifiedImageError as error:
        raise InputError("not an image that pillow can read") from error
    except Exception as error:  # decoders raise all kinds of errors on broken files
        raise InputError(one_line(error)) from error


def is_grey(image: Any) -> bool:
    """Whether an opened image is grey; raise InputError if it is neither grey nor colour."""
    if image.mode not in GREY + COLOUR:
        raise InputError(f"pixels of mode {image.mode} are neither grey nor RGB")
    return image.mode in GREY


def decode(file: ImageFile, shape: tuple[int, ...], size: ImageSize) -> Tensor:
    """Return the pixels of an image in [0, 1], resized and cropped, (channels, height, width); alpha is dropped."""
    channels, height, width = shape
    with open_image(file) as image:
        if not is_grey(image) and channels == 1:
            raise InputError("it is a colour image, but the images checked before are grey")
        if size.output_size(*image.size) != (width, height):
            raise InputError(f"it is {image.width}x{image.height} pixels, which does not fit to {width}x{height}")
        deep = image.mode in GREY_16_BIT
        if deep:
            image = image.convert("F")
        else:
            image = image.convert("RGBA") if image.mode in ("P", "PA") else image  # a palette may hold alpha
            image = image.convert("L" if channels == 1 else "RGB")
        tensor = torch.from_numpy(np.array(_fit(image, size))).to(torch.float32) / (65535 if deep else 255)
    if deep and not 0 <= tensor.min() <= tensor.max() <= 1:
        raise InputError("its pixels do not have 16 bits")
    return tensor.expand(channels, height, width) if tensor.ndim == 2 else tensor.permute(2, 0, 1)


def _fit(image: Any, size: ImageSize) -> Any:
    """Resize and crop, to the same pixels as torchvision's Resize and CenterCrop."""
    target = size.after_resize(*image.size)
    if target != image.size:
        image = image.resize(target, 2)  # bilinear
    return image if size.crop is None else image.crop(size.crop_box(*image.size))


def survey(files: Iterable[tuple[str, ImageFile]], size: ImageSize | None, where: str) -> tuple[int, int, int]:
    """Return the common shape of all images, from their headers: one channel if all are grey, else three.

    All headers are read before a run starts, so that a long run does not fail in its last hour.
    """
    n, all_grey = 0, True
    unusable: list[str] = []
    first: tuple[str, int, int] | None = None
    for name, file in files:
        n += 1
        try:
            with open_image(file) as image:
                grey = is_grey(image)
                width, height = (size or ORIGINAL_SIZE).output_size(*image.size)
        except InputError as error:
            unusable.append(f"{name!r} ({error})")
            continue
        all_grey &= grey
        first = first or (name, width, height)
        if first[1:] != (width, height):
            sizes = f"{first[0]!r} has {first[1]}x{first[2]} pixels and {name!r} has {width}x{height}"
            hint = "resize and crop them, for example with --image-size 256/224"
            raise InputError(f"{where}: images differ in size, {sizes}: {hint}")
    if unusable:
        hint = "repair or remove them"
        raise InputError(f"{where}: {len(unusable)} of {n} images cannot be used, first {unusable[0]}: {hint}")
    if first is None:
        raise InputError(f"{where}: no images")
    return 1 if all_grey else 3, first[2], first[1]
