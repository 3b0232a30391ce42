"""Data by name: ``--data X`` to rows of images and labels, and the samples that are bundled.

A form of data is one function ``(source, options) → Data`` and one line of FORMS.
"""

from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.abstract import Data as Data
from marginattack.sources.abstract import Options
from marginattack.sources.data_hf import open_hf
from marginattack.sources.data_torchvision import open_torchvision
from marginattack.sources.folder import open_folder
from marginattack.sources.images import ImageSize as ImageSize
from marginattack.sources.npz import npz, open_npz

SAMPLES = {
    "mnist": "1,000 digits of the MNIST test set, in official order",
    "cifar10": "100 images of the CIFAR-10 test set, in official order",
}


def samples(name: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Bundled images, (n, channels, height, width) in [0, 1], and their labels."""
    if name not in SAMPLES:
        raise ValueError(f"no samples named {name!r}: choose one of {', '.join(SAMPLES)}")
    with as_file(files(__package__) / "samples" / f"{name}.npz") as path, np.load(path, allow_pickle=False) as arrays:
        x, y = torch.from_numpy(arrays["x"][:limit]), torch.from_numpy(arrays["y"][:limit])
    images = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)
    return images.float() / 255, y.long()


def open_samples(source: str, options: Options) -> Data:
    """Bundled images by name."""
    name = source.removeprefix("samples:")
    if name not in SAMPLES:
        raise InputError(f"{source}: no samples named {name!r}: choose one of {', '.join(SAMPLES)}")
    with as_file(files(__package__) / "samples" / f"{name}.npz") as path:
        return npz(source, path)


class Form(NamedTuple):
    """One way to write ``--data``: what opens it, what it is, and which options it has a use for."""

    open: Callable[[str, Options], Data]
    about: str
    takes: tuple[str, ...] = ()


FORMS: dict[str, Form] = {
    "samples:NAME": Form(open_samples, f"bundled images: {', '.join(SAMPLES)}"),
    "FILE.npz": Form(open_npz, "arrays x (uint8, or floats in [0, 1]) and y (class numbers)"),
    "FOLDER": Form(open_folder, "images, one sub-folder a class, or with --labels FILE", ("labels", "image-size")),
    "torchvision:NAME": Form(
        open_torchvision, "a dataset in $TORCHVISION_ROOT, ./data or NAME@FOLDER", ("split", "image-size")
    ),
    "hf:NAME": Form(
        open_hf, "a dataset of the hub, or a local folder or parquet file", ("labels", "split", "image-size")
    ),
}


def open_data(
    source: str,
    *,
    labels: str | None = None,
    split: str | None = None,
    image_size: ImageSize | None = None,
    trust_pickle: bool = False,
) -> Data:
    """The data that ``--data`` names, checked as far as headers tell; one line says what is wrong with it.

    ``labels``: a file of labels beside a folder of images (CSV, text, .npy), or the column of labels of an hf:
    dataset. ``image_size`` fits image files, not arrays: an .npz holds the pixels that are measured.
    """
    check_options(source, {"labels": labels, "split": split})
    form = FORMS[form_of(source)]
    return form.open(source, Options(labels=labels, split=split, image_size=image_size, trust_pickle=trust_pickle))


def check_options(source: str, stated: dict[str, str | None]) -> None:
    """Refuse options that this form of data has no use for."""
    for option, value in stated.items():
        if value is not None and option not in FORMS[form_of(source)].takes:
            raise InputError(f"{source}: has no use for --{option} {value}: leave it out")


def form_of(source: str) -> str:
    """The key of FORMS that a source is written in."""
    for name in FORMS:
        prefix, _, rest = name.partition(":")
        if rest and source.startswith(f"{prefix}:"):
            return name
    path = Path(source).expanduser()
    if path.is_dir():
        return "FOLDER"
    if path.suffix.lower() == ".npz":
        return "FILE.npz"
    seen = "is neither a folder nor an .npz file" if path.exists() else "no such file or folder"
    raise InputError(f"--data {source}: {seen}: choose one of {', '.join(FORMS)}")
