"""Image files for the tests of data sources, and checks that hold for every source."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from marginattack.errors import MarginAttackError
from marginattack.sources.data import Data, open_data

RNG = np.random.default_rng(0)


def error_of(source: object, **options: Any) -> str:
    """Return the error of one line that opening a source raises."""
    with pytest.raises(MarginAttackError) as caught:
        open_data(str(source), **options)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    return line


def read_all(data: Data) -> tuple[Tensor, Tensor]:
    """Read all rows, and check what holds for every source."""
    x, y = data.read(range(len(data)))
    assert (x.dtype, y.dtype, tuple(x.shape), len(y)) == (torch.float32, torch.int64, (len(data), *data.shape), len(x))
    assert 0 <= x.min() <= x.max() <= 1
    some = [len(data) - 1, 0, 0]
    again = data.read(some)
    assert again[0].equal(x[some])
    assert again[1].equal(y[some])
    assert data.read([])[0].shape == (0, *data.shape)
    assert data.digest() == data.digest()
    assert len(data.digest()) == 64
    return x, y


def pixels(*shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def png(path: Path, values: NDArray[Any], mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path)
    return path


class Malicious:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)
