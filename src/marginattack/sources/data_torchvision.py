"""Datasets of torchvision that are on disk. Nothing is downloaded."""

import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.sources.common import explain_errors, import_extra, suggest
from marginattack.sources.data_base import Data, ImageData, ImageItem, Options
from marginattack.sources.data_folder import ImageFiles
from marginattack.sources.images import ImageSize

PICKLED = ("LSUN", "LSUNClass")  # their index is a pickle that torchvision does not verify
SURVEYED = 256  # images decoded before a run starts
PAIRS = ("samples", "imgs", "_samples")  # attributes in which torchvision keeps (path, label) of each image,
LISTS = (("_image_files", "_labels"), ("_images", "_labels"))  # or paths and labels separately


class TorchvisionItems(ImageData):
    """A dataset whose items are a pillow image and a class index."""

    kind = "items"

    def __init__(self, name: str, dataset: Any, classes: list[str] | None, size: ImageSize | None) -> None:
        self.dataset, n = dataset, len(dataset)
        super().__init__(name, n, size, classes, surveyed=range(0, n, max(1, n // SURVEYED)))

    def items(self, rows: Sequence[int]) -> Iterator[ImageItem]:
        """Yield decoded images."""
        for row in rows:
            with explain_errors(f"{self.name}: cannot read row {row}", "download the dataset again"):
                image, label = self.dataset[row]
            if isinstance(label, Tensor | np.ndarray) and label.ndim == 0:
                label = label.item()
            is_index = isinstance(label, int | np.integer) and not isinstance(label, bool) and label >= 0
            if not is_index or not hasattr(image, "mode"):
                item = f"({type(image).__name__}, {label!r:.40})"
                hint = "choose a dataset for image classification"
                raise InputError(f"{self.name}: row {row} is {item}, not an image and a class index: {hint}")
            yield ImageItem(f"row {row}", image, int(label))


def open_torchvision(source: str, options: Options) -> Data:
    """Open ``torchvision:NAME`` or ``torchvision:NAME@FOLDER``, by default the test split."""
    datasets = import_extra("torchvision.datasets", "torchvision")
    name, _, folder_name = source.removeprefix("torchvision:").partition("@")
    root = Path(folder_name or os.environ.get("TORCHVISION_ROOT") or "data").expanduser()
    if name not in datasets.__all__ or not inspect.isclass(getattr(datasets, name)):
        raise InputError(f"{source}: torchvision has no dataset {name!r}: {suggest(name, list(datasets.__all__))}")
    if name in PICKLED and not options.trust_pickle:
        raise InputError(f"{source}: its index is a pickle, which runs code: if you trust {root}, pass --trust-pickle")
    dataset = _construct(source, getattr(datasets, name), root, options.split)
    if not len(dataset):
        raise InputError(f"{source}: no images")
    classes = _class_names(getattr(dataset, "classes", None))
    files = _list_files(dataset)
    if files is None:
        return TorchvisionItems(source, dataset, classes, options.image_size)
    folder = Path(os.path.commonpath([Path(file).parent for file, _ in files]))
    files = [(Path(file).relative_to(folder).as_posix(), label) for file, label in files]
    return ImageFiles(source, folder, files, classes, options.image_size)


def _construct(source: str, kind: Any, root: Path, split: str | None) -> Any:
    """Construct the split, however the class spells it: ``train=False``, ``split="test"`` or ``split="val"``."""
    known, name = _parameters(kind), kind.__name__
    problem, hint = f"{source}: no usable data in {str(root)!r}", "store it as torchvision's documentation says"
    if "download" in known:
        hint = f"download it with torchvision.datasets.{name}({str(root)!r}, download=True)"
    hint = f"{hint}, or pass torchvision:{name}@FOLDER"
    arguments: dict[str, Any] = {"root": str(root)} if "root" in known else {}
    if "train" in known:
        arguments["train"] = "split" not in known and split == "train"  # EMNIST has both: its splits are alphabets
    if "split" not in known:
        if "train" not in known and split is not None:
            raise InputError(f"{source}: the dataset has no splits: omit --split {split}")
        if split not in (None, "train", "test"):
            raise InputError(f"{source}: no split {split!r}: choose train or test")
        with explain_errors(problem, hint):
            return kind(**arguments)
    for candidate in [split] if split else ["test", "val", "valid"]:
        with explain_errors(problem, hint):
            try:
                return kind(**arguments, split=candidate)
            except ValueError as error:
                if not str(error).startswith("Unknown value"):
                    raise InputError(f"{source}: {one_line(error)}") from error
                unknown = one_line(error)
    raise InputError(f"{source}: {unknown}: choose one with --split")


def _parameters(kind: Any) -> set[str]:
    """Return the constructor's parameters, including those that it passes on to its base class."""
    known: set[str] = set()
    for ancestor in kind.__mro__:
        if "__init__" in vars(ancestor):
            own = inspect.signature(ancestor.__init__).parameters.values()
            known |= {parameter.name for parameter in own}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
                break
    return known


def _list_files(dataset: Any) -> list[tuple[str, int]] | None:
    """Return paths and labels if the dataset stores them, which saves decoding; else None."""
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


def _class_names(classes: Any) -> list[str] | None:
    """Return class names as strings: those of ImageNet are tuples of synonyms."""
    if not isinstance(classes, Sequence) or isinstance(classes, str):
        return None
    return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]
