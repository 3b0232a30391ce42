"""What every data source is: rows of images and labels that are read as they are needed."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.images import ImageSize


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say of a source besides its name; a form that has no use for one refuses it."""

    labels: str | None = None
    split: str | None = None
    image_size: ImageSize | None = None
    trust_pickle: bool = False


class Data(ABC):
    """Images of one shape with their labels: nothing but what ``read`` is asked for is held in memory."""

    def __init__(self, name: str, shape: Sequence[int], classes: list[str] | None) -> None:
        self.name = name  # the source as it was written
        self.shape = tuple(shape)  # of one image: (channels, height, width)
        self.classes = classes

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images of these rows, float32 in [0, 1], (n, channels, height, width), and their labels, int64."""

    @abstractmethod
    def digest(self) -> str:
        """What tells this data from any other: SHA-256 of all that ``read`` depends on."""

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} images of {'×'.join(map(str, self.shape))}>"


def check_labels(labels: NDArray[Any], where: str, hint: str) -> None:
    """Labels are class numbers from 0 on; the first that is not is named."""
    wrong = np.flatnonzero((labels < 0) | (labels >= 2**31))
    if len(wrong):
        raise InputError(
            f"{where}: the label of row {wrong[0]} is {labels[wrong[0]]}, and classes are numbered from 0 on: {hint}"
        )


def sha256(head: Iterable[object], chunks: Iterable[bytes]) -> str:
    """SHA-256 of a few values by their repr, then of a stream of bytes."""
    digest = hashlib.sha256(repr(tuple(head)).encode())
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
