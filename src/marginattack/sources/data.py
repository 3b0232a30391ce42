"""Data by name, as in ``--data``, and the bundled samples.

To add a form of data, write one function ``(source, options) → Data`` and add one line to FORMS.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

import torch
from torch import Tensor

from marginattack.core.plugins import Registry
from marginattack.errors import InputError, choose
from marginattack.sources.common import Form, match_form
from marginattack.sources.data_base import Data as Data
from marginattack.sources.data_base import Options
from marginattack.sources.data_files import open_npy, open_safetensors
from marginattack.sources.data_folder import open_folder
from marginattack.sources.data_hf import open_hf
from marginattack.sources.data_npz import open_npz, read_npz
from marginattack.sources.data_tables import open_csv, open_parquet_table
from marginattack.sources.data_torchvision import open_torchvision
from marginattack.sources.images import ImageSize as ImageSize

SAMPLES = {
    "mnist": "1,000 digits of the MNIST test set, in official order",
    "cifar10": "100 images of the CIFAR-10 test set, in official order",
}
CLASSES = {"cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")}


def samples(name: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Load bundled images and their labels.

    Args:
        name: A key of ``SAMPLES``: "mnist" or "cifar10".
        limit: Load only the first ``limit`` images.

    Returns:
        Images (n, channels, height, width), float32 in [0, 1], and labels (n,), int64.

    Raises:
        InputError: There are no samples with this name.

    Example:
        >>> images, labels = samples("mnist", 100)
        >>> images.shape
        torch.Size([100, 1, 28, 28])
    """
    data = open_samples(f"samples:{name}", Options())
    images, labels = data.read(range(len(data))[:limit])
    return images.contiguous(memory_format=torch.channels_last), labels  # as they are stored


def open_samples(source: str, options: Options) -> Data:
    """Open bundled images."""
    name = source.removeprefix("samples:")
    if name not in SAMPLES:
        raise InputError(f"no samples named {name!r}: {choose(name, SAMPLES)}")
    with as_file(files(__package__) / "samples" / f"{name}.npz") as path:
        data = read_npz(source, path, options)
    data.classes = list(CLASSES[name]) if name in CLASSES else None
    return data


ARRAYS, TABLE = ("features", "labels", "layout", "bounds"), ("features", "labels", "bounds")  # options

FORMS: Mapping[str, Form] = {
    "samples:NAME": Form(open_samples, f"bundled images: {', '.join(SAMPLES)}"),
    "FILE.npz": Form(open_npz, "arrays x of any shape and y (class indices), or --features X --labels Y", ARRAYS),
    "FILE.npy": Form(open_npy, "an array of inputs, with --labels FILE", ("labels", "layout", "bounds")),
    "FILE.safetensors": Form(open_safetensors, "tensors x and y, as in an .npz file", ARRAYS),
    "FILE.csv": Form(open_csv, "columns of numbers and a column label (class indices or names)", TABLE),
    "FILE.parquet": Form(open_parquet_table, "the same", TABLE),
    "FOLDER": Form(open_folder, "images, one sub-folder per class, or with --labels FILE", ("labels", "image-size")),
    "torchvision:NAME": Form(
        open_torchvision, "a dataset in $TORCHVISION_ROOT, ./data or NAME@FOLDER", ("split", "image-size")
    ),
    "hf:NAME": Form(
        open_hf, "a dataset of the hub, or a local folder or parquet file", ("labels", "split", "image-size")
    ),
}
FORMS = Registry("marginattack.data", FORMS, lambda name, _: f"{name}:NAME")


def open_data(
    source: str,
    *,
    labels: str | None = None,
    split: str | None = None,
    image_size: ImageSize | None = None,
    trust_pickle: bool = False,
    max_gib: float | None = None,
    features: str | None = None,
    layout: str | None = None,
    raw: bool = False,
) -> Data:
    """Open inputs and labels by name. Headers are checked now, inputs when they are read.

    Args:
        source: What ``--data`` takes, in one of ``FORMS``.
        labels: A file of labels for a folder of images (CSV, text, .npy) or an .npy file; the label column of a table
            or an ``hf:`` dataset; the name of the array of labels.
        split: The split of a ``torchvision:`` or ``hf:`` dataset; by default the test split.
        image_size: How to resize and crop image files. Arrays are not resized.
        trust_pickle: Allow the torchvision datasets whose index is a pickle.
        max_gib: The largest size, in GiB, of a compressed array that grows more than 100-fold when unpacked, by default
            1/16, and of a table, by default 4.
        features: The columns of a table, "age,income", by default all numbers; the name of the array of inputs.
        layout: "nhw", "nhwc", "nchw" or "as-is"; by default inferred from the shape of an array.
        raw: Do not treat the numbers of arrays and tables as pixels: uint8 is not divided by 255, and floats need not
            be in [0, 1].

    Returns:
        The data: ``len``, ``shape``, ``classes``, ``names``, ``features``, ``read(rows)`` and ``digest()``.

    Raises:
        InputError: The source has an unknown form, cannot be read, or does not take one of the options.
        MissingDependencyError: An optional package is not installed.

    Example:
        >>> images, labels = open_data("samples:mnist").read(range(10))
    """
    check_options(source, {"labels": labels, "split": split, "features": features, "layout": layout})
    options = Options(
        labels=labels, split=split, image_size=image_size, trust_pickle=trust_pickle, max_gib=max_gib,
        features=features, layout=layout, raw=raw,
    )  # fmt: skip
    data: Data = FORMS[find_form(source)].open(source, options)
    return data


def check_options(source: str, options: dict[str, str | None]) -> None:
    """Raise InputError for options that this form of data does not take."""
    for option, value in options.items():
        if value is not None and option not in FORMS[find_form(source)].accepts:
            raise InputError(f"{source}: --{option} {value} does not apply to this form of data: omit it")


def find_form(source: str) -> str:
    """Return the key of FORMS that a source is written in."""
    path = Path(source).expanduser()
    form = "FOLDER" if path.is_dir() else match_form(source, FORMS)
    if form is None:
        problem = "neither a folder nor a file of a known kind" if path.exists() else "no such file or folder"
        hint = choose(source.partition(":")[0] + ":NAME", FORMS)
        hint = f"did you mean samples:{source}?" if source in SAMPLES else hint
        raise InputError(f"--data {source}: {problem}: {hint}")
    return form
