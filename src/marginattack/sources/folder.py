"""Image files in a folder: one sub-folder a class, or a file of labels beside them."""

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.sources.abstract import Data, Options, check_labels, sha256
from marginattack.sources.extras import Missing
from marginattack.sources.images import AS_IS, SUFFIXES, ImageSize, decode, survey

CHUNK = 2**20


class ImageFiles(Data):
    """Image files by their names under a folder."""

    def __init__(
        self,
        name: str,
        folder: Path,
        files: list[str],
        labels: NDArray[np.int64],
        classes: list[str] | None,
        size: ImageSize | None,
    ) -> None:
        check_labels(labels, name, "give each image its class")
        shape = survey(((file, folder / file) for file in files), size, name)
        super().__init__(name, shape, classes)
        self.folder, self.files, self.size = folder, files, size or AS_IS
        self.labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Decode these files."""
        images = torch.empty(len(rows), *self.shape)
        for place, row in enumerate(rows):
            file = self.files[row]
            try:
                images[place] = decode(self.folder / file, self.shape, self.size)
            except Missing:
                raise
            except InputError as error:
                raise InputError(f"{self.name}: {file!r} cannot be used ({error}): mend or remove it") from error
        return images, self.labels[torch.tensor(rows, dtype=torch.int64)]

    def digest(self) -> str:
        """Of the names, labels and bytes of all files, and of how they are fitted."""
        return sha256(("files", tuple(self.size), self.shape), self.contents())

    def contents(self) -> Iterator[bytes]:
        """All that identifies the files, a bounded number of bytes at a time."""
        for file, label in zip(self.files, self.labels.tolist(), strict=True):
            path = self.folder / file
            try:
                yield repr((file, label, path.stat().st_size)).encode()
                with path.open("rb") as stream:
                    while chunk := stream.read(CHUNK):
                        yield chunk
            except OSError as error:
                raise InputError(f"{self.name}: {file!r} cannot be read any more ({one_line(error)})") from error


def open_folder(source: str, options: Options) -> Data:
    """A folder of images: sub-folders are classes, in the order of their names, unless a file gives the labels."""
    folder = Path(source).expanduser()
    if options.labels is not None:
        files = sorted(images_under(folder, folder))
        if not files:
            raise InputError(f"{source}: holds no images ({', '.join(SUFFIXES)})")
        labels = read_labels(Path(options.labels).expanduser(), files)
        return ImageFiles(source, folder, files, labels, None, options.image_size)
    with os.scandir(folder) as entries:
        every = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    classes = [name for name, is_folder in every if is_folder]
    loose = [name for name, is_folder in every if not is_folder and name.lower().endswith(SUFFIXES)]
    if not classes or loose:
        seen = f"{len(loose)} images outside of any ({loose[0]!r})" if loose else "no folders"
        raise InputError(
            f"{source}: has {seen}, where one sub-folder a class is needed, or a labels file: --labels FILE"
        )
    files, numbers = [], []
    for number, name in enumerate(classes):
        found = sorted(images_under(folder, folder / name))
        if not found:
            raise InputError(f"{source}: the class folder {name!r} holds no images ({', '.join(SUFFIXES)}): remove it")
        files += found
        numbers += [number] * len(found)
    return ImageFiles(source, folder, files, np.array(numbers, dtype=np.int64), classes, options.image_size)


def images_under(root: Path, folder: Path) -> Iterator[str]:
    """Names, relative to the root, of all files that are images by their ending; what is hidden is left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.lower().endswith(SUFFIXES):
                yield (Path(place) / name).relative_to(root).as_posix()


def read_labels(file: Path, names: list[str]) -> NDArray[np.int64]:
    """The label of each of the named images from a file: CSV with columns file and label, or a list in name order."""
    if not file.is_file():
        raise InputError(f"--labels {file}: no such file")
    readers = {".csv": from_csv, ".txt": from_text, ".npy": from_npy}
    if file.suffix.lower() not in readers:
        raise InputError(f"--labels {file}: is none of {', '.join(readers)}: write a CSV with the columns file,label")
    try:
        labels = readers[file.suffix.lower()](file, names)
    except InputError:
        raise
    except (OSError, ValueError, csv.Error, EOFError) as error:  # a UnicodeDecodeError is a ValueError
        raise InputError(f"--labels {file}: cannot be read ({one_line(error)})") from error
    if len(labels) != len(names):
        raise InputError(f"--labels {file}: has {len(labels)} labels for {len(names)} images: one each, in name order")
    return np.array(labels, dtype=np.int64)


def from_csv(file: Path, names: list[str]) -> Sequence[int]:
    """Labels by file name, whatever the order of the rows."""
    known, found = set(names), dict[str, int]()
    with file.open(newline="", encoding="utf-8-sig") as stream:
        table = csv.DictReader(stream, strict=True)
        if not {"file", "label"} <= set(table.fieldnames or ()):
            raise InputError(f"--labels {file}: its first line must name the columns file,label")
        for row in table:
            name, label = row["file"], row["label"]
            if name not in known or name in found:
                why = "twice" if name in found else "which is no image of the folder"
                raise InputError(f"--labels {file}: line {table.line_num} names {name!r}, {why}: one line an image")
            found[name] = number(file, f"line {table.line_num}", label or "")
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"--labels {file}: {len(missing)} of {len(names)} images have no label, first {missing[0]!r}")
    return [found[name] for name in names]


def from_text(file: Path, names: list[str]) -> Sequence[int]:
    """One label a line."""
    with file.open(encoding="utf-8-sig") as stream:
        lines: Iterable[str] = stream.read().rstrip().splitlines()
    return [number(file, f"line {at}", line) for at, line in enumerate(lines, 1)]


def from_npy(file: Path, names: list[str]) -> Sequence[int]:
    """One label a row; mapped first, so that the file must be as long as its header says."""
    labels = np.load(file, mmap_mode="r", allow_pickle=False)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InputError(f"--labels {file}: is no row of integers, but {getattr(labels, 'dtype', type(labels))} of shape "
                      f"{getattr(labels, 'shape', None)}: save one class number an image")  # fmt: skip
    check_labels(labels, f"--labels {file}", "give each image its class")
    return [int(label) for label in labels]


def number(file: Path, where: str, text: str) -> int:
    """A class number, or a refusal that names it."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text, re.ASCII):
        raise InputError(f"--labels {file}: {where} holds {text[:40]!r}, which is no class number from 0 on")
    return int(text)
