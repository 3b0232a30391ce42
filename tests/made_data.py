"""Files of images for the tests, and what every data source promises."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.data import Data, open_data

DRAW = np.random.default_rng(0)


def refused(source: object, **options: Any) -> str:
    """The one line that refuses a source."""
    with pytest.raises(InputError) as caught:
        open_data(str(source), **options)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    return line


def whole(data: Data) -> tuple[Tensor, Tensor]:
    """All rows, with what every source promises."""
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
    return DRAW.integers(0, 256, shape).astype(np.uint8)


def png(path: Path, values: NDArray[Any], mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path)
    return path


class Malicious:
    """Leaves a mark when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)
