"""Base classes of the data sources: images and labels are read on demand."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, sha256
from marginattack.sources.images import ORIGINAL_SIZE, ImageFile, ImageSize, decode, survey

CHUNK = 2**20  # bytes read at a time
ROWS_AT_A_TIME = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``open_data``."""

    labels: str | None = None
    split: str | None = None
    image_size: ImageSize | None = None
    trust_pickle: bool = False
    max_gib: float | None = None
    features: str | None = None
    layout: str | None = None
    raw: bool = False  # values are not pixels: their bounds are stated


class Data(ABC):
    """Inputs of one shape with their labels. Only the rows that are read are in memory."""

    labels: Tensor | None = None  # all labels, if they are known without decoding the images

    def __init__(
        self, name: str, shape: Sequence[int], classes: list[str] | None, *, names: list[str] | None = None,
        features: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name  # the source as the user wrote it
        self.shape = tuple(shape)  # of one input: (channels, height, width) of an image
        self.classes = classes
        self.names = names  # of the inputs: file names, relative to the source
        self.features = features  # the columns of a table

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs, float32, as images (n, channels, height, width) in [0, 1], and their labels, int64."""

    @abstractmethod
    def digest(self) -> str:
        """Return the SHA-256 of everything that ``read`` depends on."""

    def stamp(self) -> str:
        """Return a digest of the sizes and times of the files when they were opened; empty if they are unknown.

        Data with the same stamp on the same file system are the same: another process need not hash them again.
        """
        return ""

    def all_labels(self) -> Tensor:
        """Return all labels; reads the inputs, a few at a time, if there is no other way."""
        if self.labels is not None:
            return self.labels
        rows = range(len(self))
        return torch.cat([self.read(rows[first : first + ROWS_AT_A_TIME])[1] for first in rows[::ROWS_AT_A_TIME]])

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} inputs of {'×'.join(map(str, self.shape))}>"


class ImageItem(NamedTuple):
    """One image that is not decoded yet."""

    name: str  # its file name or row, for error messages
    file: ImageFile
    label: int


class ImageData(Data):
    """Images that are decoded one by one. Subclasses implement ``items``."""

    kind: ClassVar[str]  # part of the digest

    def __init__(
        self, name: str, n: int, size: ImageSize | None, classes: list[str] | None, surveyed: Sequence[int],
        names: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.n, self.size = name, n, size or ORIGINAL_SIZE
        self.opened = np.zeros((n, 2), np.int64)  # size and time of each file when it was first seen
        shape = survey(((item.name, item.file) for item in self._watch(surveyed)), size, name)
        super().__init__(name, shape, classes, names=names)

    @abstractmethod
    def items(self, rows: Sequence[int]) -> Iterator[ImageItem]:
        """Yield the images of these rows."""

    def __len__(self) -> int:
        return self.n

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Decode these images."""
        images, labels = torch.empty(len(rows), *self.shape), torch.empty(len(rows), dtype=torch.int64)
        for k, item in enumerate(self._watch(rows)):
            try:
                images[k], labels[k] = decode(item.file, self.shape, self.size), item.label
            except InputError as error:
                raise InputError(f"{self.name}: cannot use {item.name!r} ({error}): repair or remove it") from error
        return images, labels

    def digest(self) -> str:
        """Hash all images and labels, and how images are resized and cropped."""
        every = self._watch(range(len(self)))
        chunks = (chunk for item in every for chunk in self._identify(item))
        return sha256(self.kind, tuple(self.size), self.shape, chunks=chunks)

    def stamp(self) -> str:
        """Hash the sizes and times of the files, if every image is one."""
        for row, item in enumerate(self.items(range(len(self)))):
            if not isinstance(item.file, Path):
                return ""
            if not self.opened[row].any():
                self.opened[row] = file_stamp(item.file)
        return sha256(self.kind, chunks=[self.opened.tobytes()]) if self.opened[:, 1].all() else ""

    def _watch(self, rows: Sequence[int]) -> Iterator[ImageItem]:
        """Yield the images of these rows; raise InputError, after its use, for a file that has changed."""
        for row, item in zip(rows, self.items(rows), strict=True):
            if isinstance(item.file, Path) and not self.opened[row].any():
                self.opened[row] = file_stamp(item.file)
            yield item
            if isinstance(item.file, Path):
                check_unchanged(item.file, (int(self.opened[row, 0]), int(self.opened[row, 1])), self.name)

    def _identify(self, item: ImageItem) -> Iterator[bytes]:
        """Yield the bytes that identify one image, in chunks of bounded size."""
        if isinstance(item.file, bytes):
            yield repr((item.label, len(item.file))).encode()
            yield item.file
        elif isinstance(item.file, Path):
            with explain_errors(f"{self.name}: cannot read {item.name!r}"), item.file.open("rb") as stream:
                named = (item.name,) if self.kind == "files" else ()
                yield repr((*named, item.label, item.file.stat().st_size)).encode()
                while chunk := stream.read(CHUNK):
                    yield chunk
        else:
            yield repr((item.file.mode, item.file.size, item.label)).encode()
            yield item.file.tobytes()


def file_stamp(file: Path | int) -> tuple[int, int]:
    """Return the size of a file and the time of its last change; -1 if it cannot be accessed."""
    try:
        status = os.stat(file)
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def check_unchanged(file: Path | int, opened: tuple[int, int], name: str) -> None:
    """Raise InputError for a file that was changed since it was opened: its digest no longer describes it."""
    if file_stamp(file) != opened:
        which = f" ({file.name})" if isinstance(file, Path) else ""
        hint = "restore it and run the same command again, or measure into another --out"
        raise InputError(f"{name}{which} was changed while it was in use: {hint}")


def relative_names(names: Sequence[str]) -> list[str]:
    """Return names that can be stored: of absolute paths only the last part, with invalid UTF-8 escaped."""
    short = (PurePath(name).name if PurePath(name).is_absolute() else name for name in names)
    return [name.encode(errors="backslashreplace").decode() for name in short]


def check_labels(labels: NDArray[Any], where: str, hint: str = "give each image its class index") -> Tensor:
    """Return labels as int64, or name the first that is not a class index."""
    if labels.dtype.kind not in "iu":
        raise InputError(f"{where} has {labels.dtype} labels: labels are integer class indices, starting at 0")
    wrong = np.flatnonzero((labels < 0) | (labels >= 2**31))
    if len(wrong):
        value = f"the label of row {wrong[0]} is {labels[wrong[0]]}"
        raise InputError(f"{where}: {value}, but class indices start at 0: {hint}")
    return torch.from_numpy(labels.astype(np.int64))
