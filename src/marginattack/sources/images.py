"""Image files: looked at cheaply, decoded to pixels in [0, 1], fitted to the size that a model takes."""

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
from marginattack.sources.extras import Missing, need

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")  # what torchvision takes
FORMATS = ("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP", "GIF")  # no EPS: pillow has Ghostscript run it
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # grey with 16 bits
GREY = ("1", "L", "LA", "La", *DEEP)
COLOUR = ("RGB", "RGBA", "RGBa", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV")
LARGEST = 89_478_485  # pixels of one image: where pillow begins to warn of a decompression bomb

File = Path | bytes


class ImageSize(NamedTuple):
    """How an image is fitted: its shorter side resized (bilinear), then the centre cropped to a square."""

    resize: int | None
    crop: int | None

    @classmethod
    def parse(cls, text: str) -> "ImageSize":
        """``256/224`` resizes to 256 and crops to 224; ``224`` is ``224/224``; ``256/`` and ``/224`` do one alone."""
        found = re.fullmatch(r"([1-9][0-9]{0,4})?(/)?([1-9][0-9]{0,4})?", text, re.ASCII)
        if not found or not (found[1] or found[3]):
            raise InputError(f"--image-size {text!r} is not RESIZE/CROP in pixels: write 256/224, 224, 256/ or /224")
        resize, slash, crop = found.groups()
        return cls(int(resize) if resize else None, int(crop or (0 if slash else resize)) or None)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after the resize, rounded as torchvision does."""
        if self.resize is None:
            return width, height
        longer = int(self.resize * max(width, height) / min(width, height))
        return (self.resize, longer) if width <= height else (longer, self.resize)

    def fitted(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after the resize and the crop."""
        width, height = self.resized(width, height)
        if width * height > LARGEST:
            raise InputError(f"it would be resized to {width}x{height} pixels")
        if self.crop is None:
            return width, height
        if min(width, height) < self.crop:
            raise InputError(f"{width}x{height} pixels are smaller than the crop of {self.crop}: resize it first")
        return self.crop, self.crop


AS_IS = ImageSize(None, None)


class Header(NamedTuple):
    """What is known of an image before its pixels are decoded."""

    grey: bool
    width: int
    height: int


def header(image: Any) -> Header:
    """The header of an image that pillow has opened, if its pixels can be used."""
    if image.mode not in GREY + COLOUR:
        raise InputError(f"pixels of mode {image.mode} are neither grey nor RGB")
    return Header(image.mode in GREY, *image.size)


@contextmanager
def opened(file: File) -> Iterator[Any]:
    """An image file, its pixels not yet decoded; whatever is wrong with it is InputError, then and while it is used."""
    pillow = need("PIL.Image", "pillow", "images")
    try:
        if isinstance(file, Path) and not file.is_file():  # a pipe would wait for ever
            raise InputError("not a regular file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
                yield image
    except InputError:
        raise
    except pillow.UnidentifiedImageError as error:
        raise InputError("no image that pillow knows") from error
    except Exception as error:  # decoders raise what they like on broken files
        raise InputError(one_line(error)) from error


def look(file: File) -> Header:
    """The header of an image file."""
    with opened(file) as image:
        return header(image)


def decode(file: File, shape: tuple[int, ...], size: ImageSize) -> Tensor:
    """An image file's pixels in this shape."""
    with opened(file) as image:
        return pixels(image, shape, size)


def pixels(image: Any, shape: tuple[int, ...], size: ImageSize) -> Tensor:
    """The pixels in [0, 1] of an image that pillow has opened, fitted, (channels, height, width); alpha is dropped."""
    channels, height, width = shape
    seen = header(image)
    if channels == 1 and not seen.grey:
        raise InputError("it has colours, and the images looked at before were grey")
    if size.fitted(seen.width, seen.height) != (width, height):
        raise InputError(f"it is {seen.width}x{seen.height} pixels, which does not fit to {width}x{height}")
    deep = image.mode in DEEP
    if deep:
        image = image.convert("F")
    else:
        image = image.convert("RGBA") if image.mode in ("P", "PA") else image  # a palette may hold alpha
        image = image.convert("L" if channels == 1 else "RGB")
    values = np.array(fit(image, size))
    tensor = torch.from_numpy(values).to(torch.float32) / (65535 if deep else 255)
    if deep and not 0 <= tensor.min() <= tensor.max() <= 1:
        raise InputError("its pixels are not 16 bits deep")
    return tensor.expand(channels, height, width) if tensor.ndim == 2 else tensor.permute(2, 0, 1)


def fit(image: Any, size: ImageSize) -> Any:
    """Resize and crop, to the same pixels as torchvision's Resize and CenterCrop."""
    target = size.resized(*image.size)
    if target != image.size:
        image = image.resize(target, 2)  # bilinear
    if size.crop is None:
        return image
    left, top = (round((side - size.crop) / 2) for side in image.size)
    return image.crop((left, top, left + size.crop, top + size.crop))


def survey(files: Iterable[tuple[str, File | Header]], size: ImageSize | None, where: str) -> tuple[int, int, int]:
    """The one shape of all images, from their headers: grey if all are, RGB otherwise.

    A long run should not find out in its last hour, so every file is looked at before it starts.
    """
    seen = bad = 0
    first_bad, grey = "", True
    common: tuple[str, int, int] | None = None
    for name, file in files:
        seen += 1
        try:
            found = file if isinstance(file, Header) else look(file)
            width, height = (size or AS_IS).fitted(found.width, found.height)
        except Missing:
            raise
        except InputError as error:
            bad += 1
            first_bad = first_bad or f"{name!r} ({error})"
            continue
        grey &= found.grey
        common = common or (name, width, height)
        if common[1:] != (width, height):
            raise InputError(
                f"{where}: images differ in size, {common[0]!r} has {common[1]}x{common[2]} pixels and {name!r} "
                f"{width}x{height}: fit them with --image-size 256/224 (resize/crop) or as the model wants"
            )
    if bad:
        raise InputError(
            f"{where}: {bad} of {seen} images cannot be used, the first is {first_bad}: mend or remove them"
        )
    if common is None:
        raise InputError(f"{where}: holds no images")
    return 1 if grey else 3, common[2], common[1]
