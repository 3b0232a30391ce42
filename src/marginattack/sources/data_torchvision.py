"""Datasets of torchvision that are on disk already: nothing is downloaded."""

import difflib
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.sources.abstract import Data, Options, sha256
from marginattack.sources.extras import need
from marginattack.sources.folder import ImageFiles
from marginattack.sources.images import AS_IS, Header, ImageSize, header, pixels, survey

PICKLED = ("LSUN", "LSUNClass")  # their index is a pickle that torchvision does not check
LOOKED_AT = 256  # images that are decoded before a run begins
PAIRS = ("samples", "imgs", "_samples")  # where torchvision keeps (path, label) of each image
LISTS = (("_image_files", "_labels"), ("_images", "_labels"))  # or the two apart


class Items(Data):
    """A dataset that gives a pillow image and a class number for each row."""

    def __init__(self, name: str, dataset: Any, classes: list[str] | None, size: ImageSize | None) -> None:
        self.name, self.dataset, self.size = name, dataset, size or AS_IS
        step = max(1, len(dataset) // LOOKED_AT)
        looked_at = ((f"row {row}", self.header(row)) for row in range(0, len(dataset), step))
        super().__init__(name, survey(looked_at, size, name), classes)

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, row: int) -> tuple[Any, int]:
        """An image and its label, if they are."""
        try:
            image, label = self.dataset[row]
        except Exception as error:  # whatever torchvision and the decoders raise on broken files
            raise InputError(
                f"{self.name}: row {row} cannot be read ({one_line(error)}): fetch the data again"
            ) from error
        if isinstance(label, Tensor | np.ndarray) and label.ndim == 0:
            label = label.item()
        if (
            isinstance(label, bool)
            or not isinstance(label, int | np.integer)
            or label < 0
            or not hasattr(image, "mode")
        ):
            raise InputError(f"{self.name}: row {row} is ({type(image).__name__}, {label!r:.40}), no image and its class: "
                          "choose a dataset for classification")  # fmt: skip
        return image, int(label)

    def header(self, row: int) -> Header:
        """What is known of an image before it is fitted."""
        try:
            return header(self.item(row)[0])
        except InputError as error:
            raise InputError(str(error) if self.name in str(error) else f"{self.name}: row {row}: {error}") from error

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Ask the dataset for these rows."""
        images, labels = torch.empty(len(rows), *self.shape), torch.empty(len(rows), dtype=torch.int64)
        for place, row in enumerate(rows):
            image, labels[place] = self.item(row)
            try:
                images[place] = pixels(image, self.shape, self.size)
            except InputError as error:
                raise InputError(f"{self.name}: row {row}: {error}") from error
        return images, labels

    def digest(self) -> str:
        """Of all images, decoded, and their labels, and of how they are fitted."""
        return sha256(("items", tuple(self.size), self.shape), self.contents())

    def contents(self) -> Iterator[bytes]:
        """Every item as bytes."""
        for row in range(len(self)):
            image, label = self.item(row)
            yield repr((image.mode, image.size, label)).encode()
            yield image.tobytes()


def open_torchvision(source: str, options: Options) -> Data:
    """``torchvision:NAME`` or ``torchvision:NAME@FOLDER``, the test split unless another is named."""
    datasets = need("torchvision.datasets", "torchvision", "torchvision")
    name, _, at = source.removeprefix("torchvision:").partition("@")
    root = Path(at or os.environ.get("TORCHVISION_ROOT") or "data").expanduser()
    if name not in datasets.__all__ or not inspect.isclass(getattr(datasets, name)):
        near = difflib.get_close_matches(name, datasets.__all__, n=3, cutoff=0.4) or ["CIFAR10", "MNIST", "ImageNet"]
        raise InputError(f"{source}: torchvision has no dataset {name!r}: is it {' or '.join(near)}?")
    if name in PICKLED and not options.trust_pickle:
        raise InputError(f"{source}: its index is a pickle, and so is code: add --trust-pickle if you trust {root}")
    dataset = construct(source, getattr(datasets, name), root, options.split)
    if not len(dataset):
        raise InputError(f"{source}: holds no images")
    classes = names(getattr(dataset, "classes", None))
    files = files_of(dataset)
    if files is None:
        return Items(source, dataset, classes, options.image_size)
    folder = Path(os.path.commonpath([Path(file).parent for file, _ in files]))
    paths = [Path(file).relative_to(folder).as_posix() for file, _ in files]
    labels = np.array([label for _, label in files], dtype=np.int64)
    return ImageFiles(source, folder, paths, labels, classes, options.image_size)


def construct(source: str, kind: Any, root: Path, split: str | None) -> Any:
    """The dataset's test split, however the class spells it: ``train=False``, ``split="test"`` or ``split="val"``."""
    known = parameters(kind)
    arguments = {"root": str(root)} if "root" in known else {}
    if "split" not in known:
        if "train" not in known and split is not None:
            raise InputError(f"{source}: has no splits: leave --split {split} out")
        if split not in (None, "train", "test"):
            raise InputError(f"{source}: has no split {split!r}: choose train or test")
        flags = {"train": split == "train"} if "train" in known else {}
        with explained(source, kind, root, known):
            return kind(**arguments, **flags)
    flags = {"train": False} if "train" in known else {}  # EMNIST: its splits are alphabets
    for wanted in [split] if split else ["test", "val", "valid"]:
        with explained(source, kind, root, known):
            try:
                return kind(**arguments, **flags, split=wanted)
            except ValueError as error:
                if not str(error).startswith("Unknown value"):
                    raise
                reason = one_line(error)
    raise InputError(f"{source}: {reason}: name one with --split")


def parameters(kind: Any) -> set[str]:
    """What a class can be constructed with, also what it hands on to the class it extends."""
    known: set[str] = set()
    for ancestor in kind.__mro__:
        if "__init__" in vars(ancestor):
            own = inspect.signature(ancestor.__init__).parameters.values()
            known |= {parameter.name for parameter in own}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
                break
    return known


@contextmanager
def explained(source: str, kind: Any, root: Path, known: set[str]) -> Iterator[None]:
    """What torchvision raises without its files, in one line that says how to get them."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith("Unknown value"):
            raise
        raise InputError(f"{source}: {one_line(error)}") from error
    except Exception as error:  # RuntimeError, FileNotFoundError, a missing package …
        way = "put it there as torchvision's documentation says"
        if "download" in known:
            way = f"fetch it with torchvision.datasets.{kind.__name__}({str(root)!r}, download=True)"
        raise InputError(
            f"{source}: no usable data in {str(root)!r} ({one_line(error)}): {way}, or name its folder: "
            f"torchvision:{kind.__name__}@FOLDER"
        ) from error


def files_of(dataset: Any) -> list[tuple[str, int]] | None:
    """Paths and labels where the dataset keeps them, which saves decoding; None where it has something else."""
    pairs: Any = None
    for name in PAIRS:
        pairs = getattr(dataset, name, None) or pairs
    for files, labels in LISTS:
        if hasattr(dataset, files) and hasattr(dataset, labels):
            pairs = list(zip(getattr(dataset, files), getattr(dataset, labels), strict=False))
    if not isinstance(pairs, list) or len(pairs) != len(dataset):
        return None
    if not all(len(pair) == 2 and isinstance(pair[0], str | Path) and type(pair[1]) is int for pair in pairs):
        return None
    return [(os.path.abspath(file), label) for file, label in pairs]


def names(classes: Any) -> list[str] | None:
    """Class names as strings: ImageNet's are tuples of synonyms."""
    if not isinstance(classes, Sequence) or isinstance(classes, str):
        return None
    return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]
