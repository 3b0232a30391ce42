"""Arrays in an .npz: read as written, row by row; nothing hostile is unpacked or executed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import RNG, error_of, pixels, read_all

from marginattack.errors import InputError
from marginattack.sources.data import open_data


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [((9, 5, 6), (0, 1, 2)), ((9, 5, 6, 3), (0, 3, 1, 2)), ((9, 4, 5, 6), (0, 1, 2, 3)), ((9, 5, 6, 1), (0, 3, 1, 2))],
)
def test_npz_reads_what_was_written(tmp_path: Path, save: Any, shape: tuple[int, ...], channels_first: Any) -> None:
    x, y = pixels(*shape), RNG.integers(0, 9, 9)
    save(tmp_path / "a.npz", x=x, y=y)
    images_, labels = read_all(open_data(str(tmp_path / "a.npz")))
    expected = torch.from_numpy(x.transpose(channels_first).copy()).float() / 255
    assert images_.equal(expected.unsqueeze(1) if expected.ndim == 3 else expected)
    assert labels.tolist() == y.tolist()


def test_npz_digest_depends_on_the_content(tmp_path: Path) -> None:
    x, y = pixels(20, 8, 8), np.arange(20)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "b.npz", x=x, y=y)
    np.savez(tmp_path / "c.npz", x=x, y=y[::-1])
    x[-1, -1, -1] ^= 1
    np.savez(tmp_path / "d.npz", x=x, y=y)
    a, b, c, d = (open_data(str(tmp_path / f"{name}.npz")).digest() for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_npz_of_floats(tmp_path: Path, dtype: str) -> None:
    x = RNG.random((70, 3, 5, 6)).astype(dtype)
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(70, np.uint8))
    assert read_all(open_data(str(tmp_path / "a.npz")))[0].equal(torch.from_numpy(x.astype(np.float32)))


@pytest.mark.parametrize(
    ("value", "hint"),
    [(255.0, "divide x by 255"), (-2.1, "undo its normalisation"), (np.nan, "x holds NaN or infinity in row")],
)
def test_npz_of_floats_out_of_range(tmp_path: Path, value: float, hint: str) -> None:
    x = np.full((200, 1, 5, 6), 0.5, np.float32)
    x[0, 0, 3, 3] = value
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(200, int))
    assert hint in error_of(tmp_path / "a.npz")
    x[1], x[0] = x[0], 0.5  # a row that is not surveyed before the run
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(200, int))
    data = open_data(str(tmp_path / "a.npz"))
    data.read([0, 2])
    with pytest.raises(InputError, match=hint):
        data.read([0, 1])


def test_npz_ambiguous_channels_can_be_stated(tmp_path: Path) -> None:
    x = pixels(2, 3, 4, 4)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1])
    assert "channels may be first or last: state np.savez(…, layout='nchw')" in error_of(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x, y=[0, 1], layout="nchw")
    np.savez(tmp_path / "c.npz", x=x, y=[0, 1], layout="nhwc")
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1], layout="nhw")
    assert open_data(str(tmp_path / "b.npz")).shape == (3, 4, 4)
    assert open_data(str(tmp_path / "c.npz")).shape == (4, 3, 4)
    assert "layout is 'nhw' for x of shape (2, 3, 4, 4)" in error_of(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"images": pixels(2, 5, 5), "labels": [0, 1]}, "needs arrays x and y, but has 'images', 'labels'"),
        ({"x": pixels(2, 5, 5), "y": [0, 1, 2]}, "x has 2 images but y has 3 labels"),
        ({"x": pixels(2, 5, 5), "y": [0.0, 1.0]}, "y is float64: labels are integer class indices"),
        ({"x": pixels(2, 5, 5), "y": [0, -1]}, "y: the label of row 1 is -1"),
        ({"x": pixels(2, 5, 5), "y": [[0, 1], [1, 0]]}, "save y.argmax(1)"),
        ({"x": pixels(2, 5, 5), "y": [[0], [1]]}, "save y.ravel()"),
        ({"x": pixels(2, 5, 5).astype(int), "y": [0, 1]}, "x is int64: pixels are uint8"),
        ({"x": pixels(2), "y": [0, 1]}, "x has shape (2,), one number per input"),
        ({"x": pixels(2, 7, 5, 5), "y": [0, 1]}, "neither the second nor the last axis has 1, 3 or 4"),
        ({"x": np.asfortranarray(pixels(2, 5, 5)), "y": [0, 1]}, "Fortran order"),
        ({"x": pixels(0, 5, 5), "y": np.zeros(0, int)}, "save an array that is not empty"),
        ({"x": pixels(2, 5, 5), "y": 3}, "save an array that is not empty"),
    ],
)
def test_npz_refusals(tmp_path: Path, arrays: dict[str, Any], line: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert line in error_of(tmp_path / "a.npz")


def test_files_that_are_not_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 but not really")
    assert "not a complete .npz file" in error_of(path)
    np.savez_compressed(path, x=pixels(50, 9, 9), y=np.zeros(50, int))
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-200])
    assert "not a complete .npz file" in error_of(path)
    content[300:330] = bytes(30)  # inside the deflated images
    path.write_bytes(content)
    assert "not a complete .npz file" in error_of(path)
    assert "no such file" in error_of(tmp_path / "none.npz")


def test_a_file_that_is_truncated_while_it_is_read_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.zeros(50, int), x=pixels(50, 9, 9))
    data = open_data(str(tmp_path / "a.npz"))
    os.truncate(tmp_path / "a.npz", 2000)
    with pytest.raises(InputError, match=r"a\.npz was changed while it was in use"):
        data.read([49])


@pytest.mark.parametrize(("save", "few"), [(np.savez, 5_000), (np.savez_compressed, 2_000)])
def test_memory_is_flat_in_the_number_of_images(tmp_path: Path, save: Any, few: int) -> None:
    """Compare the peak memory of processes that read and hash few and ten times as many images."""
    script = textwrap.dedent(r"""
        import re, sys  # the peak of this process: ru_maxrss would be that of its parent
        from marginattack.sources.data import open_data
        data = open_data(sys.argv[1])
        total = 0.0
        for first in range(0, len(data), 500):
            x, y = data.read(range(first, first + 500))
            total += float(x.sum())
        data.digest()
        print(len(data), re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
    """)
    # Freed blocks that the allocator keeps would change the peak by a tenth, at random.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    peaks = {}
    for n in (few, 10 * few):
        path = tmp_path / f"{n}.npz"
        block = np.tile(pixels(500, 3, 32, 32), (n // 500, 1, 1, 1))
        save(path, x=block, y=np.zeros(n, np.int64))
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, env=environment
        )
        count, peak = map(int, done.stdout.split())
        assert count == n
        peaks[n] = peak
        path.unlink()
    assert peaks[10 * few] < 1.02 * peaks[few]
