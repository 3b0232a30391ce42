"""Image folders: one sub-folder per class, or a file of labels."""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors
from marginattack.sources.data_base import Data, ImageData, ImageItem, Options, check_labels, relative_names
from marginattack.sources.images import SUFFIXES, ImageSize


class ImageFiles(ImageData):
    """Image files by their paths relative to a folder."""

    kind = "files"

    def __init__(
        self,
        name: str,
        folder: Path,
        files: Sequence[tuple[str, int]],
        classes: list[str] | None,
        size: ImageSize | None,
    ) -> None:
        self.folder, self.files = folder, [file for file, _ in files]
        labels = [label for _, label in files]
        self.labels: Tensor = check_labels(np.array(labels, dtype=np.int64), name)
        every = range(len(files))
        super().__init__(name, len(files), size, classes, surveyed=every, names=relative_names(self.files))

    def items(self, rows: Sequence[int]) -> Iterator[ImageItem]:
        """Yield the paths."""
        for row in rows:
            yield ImageItem(self.files[row], self.folder / self.files[row], int(self.labels[row]))


def open_folder(source: str, options: Options) -> Data:
    """Open a folder of images. Sub-folders are classes, sorted by name, unless a file gives the labels."""
    folder = Path(source).expanduser()
    if options.labels is not None:
        files = _list_images(folder, folder)
        if not files:
            raise InputError(f"{source}: no images ({', '.join(SUFFIXES)})")
        labels = read_labels(Path(options.labels).expanduser(), files)
        return ImageFiles(source, folder, list(zip(files, labels, strict=True)), None, options.image_size)
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    classes = [path.name for path in entries if path.is_dir()]
    loose = [path.name for path in entries if path.name.lower().endswith(SUFFIXES) and not path.is_dir()]
    if not classes or loose:
        problem = f"{len(loose)} images are outside the class folders ({loose[0]!r})" if loose else "no class folders"
        raise InputError(f"{source}: {problem}: make one sub-folder per class, or pass --labels FILE")
    labelled: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        images = _list_images(folder, folder / name)
        if not images:
            raise InputError(f"{source}: class folder {name!r} has no images ({', '.join(SUFFIXES)}): remove it")
        labelled += [(image, label) for image in images]
    return ImageFiles(source, folder, labelled, classes, options.image_size)


def _list_images(root: Path, folder: Path) -> list[str]:
    """Return the sorted paths, relative to the root, of all files with an image suffix, without hidden folders."""
    paths = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name).relative_to(root).as_posix() for name in files if name.lower().endswith(SUFFIXES)]
    return sorted(paths)


def read_labels(file: Path, images: list[str]) -> Sequence[int]:
    """Read the label of each image from a CSV with columns file and label, or from a list in the order of the names."""
    if file.is_file() and file.suffix.lower() == ".csv":
        with explain_errors(f"--labels {file}: cannot be read"):
            return _read_csv(file, images)
    return read_label_list(file, len(images), "not one of .csv, .txt, .npy: write a CSV with the columns file,label")


def read_label_list(
    file: Path, n: int, other: str = "not one of .txt, .npy: write one class per line"
) -> Sequence[int]:
    """Read one label per row from a .txt or .npy file; ``other`` is the error for files of another kind."""
    if not file.is_file():
        raise InputError(f"--labels {file}: no such file: check the path")
    readers = {".txt": _read_text, ".npy": _read_npy}
    if file.suffix.lower() not in readers:
        raise InputError(f"--labels {file}: {other}")
    with explain_errors(f"--labels {file}: cannot be read"):
        labels = readers[file.suffix.lower()](file)
    if len(labels) != n:
        raise InputError(f"--labels {file}: {len(labels)} labels for {n} images: give one per image, in their order")
    return labels


def _read_csv(file: Path, images: list[str]) -> Sequence[int]:
    """Read labels by file name, in any order."""
    expected, labels = set(images), dict[str, int]()
    with file.open(newline="", encoding="utf-8-sig") as stream:
        table = csv.DictReader(stream, strict=True)
        if not {"file", "label"} <= set(table.fieldnames or ()):
            raise InputError(f"--labels {file}: the first line must name the columns file,label")
        for row in table:
            name, line = row["file"], f"line {table.line_num}"
            if name not in expected or name in labels:
                problem = "twice" if name in labels else "which is not an image of the folder"
                raise InputError(f"--labels {file}: {line} names {name!r}, {problem}: write one line per image")
            labels[name] = _parse_label(file, line, row["label"] or "")
    missing = [name for name in images if name not in labels]
    if missing:
        count = f"{len(missing)} of {len(images)} images have no label"
        raise InputError(f"--labels {file}: {count}, first {missing[0]!r}: add them")
    return [labels[name] for name in images]


def _read_text(file: Path) -> Sequence[int]:
    """Read one label per line."""
    lines = file.read_text(encoding="utf-8-sig").rstrip().splitlines()
    return [_parse_label(file, f"line {number}", line) for number, line in enumerate(lines, 1)]


def _read_npy(file: Path) -> Sequence[int]:
    """Read one label per row. The file is mapped, so that its size must agree with its header."""
    labels = np.load(file, mmap_mode="r", allow_pickle=False)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        shape = getattr(labels, "shape", type(labels).__name__)
        raise InputError(f"--labels {file}: shape {shape} is not (n,): save one class index per image")
    return [int(label) for label in check_labels(labels, f"--labels {file}")]


def _parse_label(file: Path, where: str, text: str) -> int:
    """Return a class index, or name the text that is not one."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text, re.ASCII):
        raise InputError(f"--labels {file}: {where} is {text[:40]!r}, not a class index: class indices start at 0")
    return int(text)
