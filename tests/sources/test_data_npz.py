"""Arrays in an .npz: read as written, row by row; nothing hostile is unpacked or executed."""

import io
import os
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data_helpers import RNG, Malicious, error_of, pixels, read_all

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
    ("value", "hint"), [(255.0, "divide x by 255"), (-2.1, "undo its normalisation"), (np.nan, "not finite")]
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
        ({"x": pixels(2, 25), "y": [0, 1]}, "x has shape (2, 25): images are (n, h, w)"),
        ({"x": pixels(2, 7, 5, 5), "y": [0, 1]}, "neither the second nor the last axis has 1, 3 or 4"),
        ({"x": np.asfortranarray(pixels(2, 5, 5)), "y": [0, 1]}, "Fortran order"),
        ({"x": pixels(0, 5, 5), "y": np.zeros(0, int)}, "it must be an array that is not empty"),
        ({"x": pixels(2, 5, 5), "y": 3}, "it must be an array that is not empty"),
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
    with pytest.raises(InputError, match=r"a\.npz: the file became shorter while it was read"):
        data.read([49])


def npy(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """The header of an .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.fixture
def unpacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something was unpacked")

    monkeypatch.setattr("shutil.copyfileobj", never)


@pytest.mark.usefixtures("unpacks_nothing")
def test_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path, n = tmp_path / "bomb.npz", 1_200_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        zeros = bytes(2**20)
        with archive.open("x.npy", "w", force_zip64=True) as stream:
            stream.write(npy((n, 30, 30)))
            for _ in range(n * 900 // 2**20):
                stream.write(zeros)
            stream.write(bytes(n * 900 % 2**20))
        archive.writestr("y.npy", npy((n,), "|i1") + bytes(n))
    assert path.stat().st_size < 8_000_000
    assert "more than 100-fold and beyond 1 GiB, like a zip bomb" in error_of(path)


@pytest.mark.usefixtures("unpacks_nothing")
def test_zip_bomb_whose_header_is_small_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy((2, 5, 5)) + bytes(50_000_000))
        archive.writestr("y.npy", npy((2,), "|i1") + bytes(2))
    assert "declares 50000128 bytes, but its shape (2, 5, 5) of uint8 needs 178" in error_of(tmp_path / "a.npz")


@pytest.mark.usefixtures("unpacks_nothing")
@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("x.npy", npy((2, 5, 5)) + bytes(50))
        archive.writestr("y.npy", npy((2,), "|i1") + bytes(2))
    assert "compressed by a method that numpy does not use" in error_of(tmp_path / "a.npz")


@pytest.mark.usefixtures("unpacks_nothing")
def test_an_endless_header_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 20_000_000)
        archive.writestr("y.npy", npy((2,), "|i1") + bytes(2))
    assert "reading array header, expected 2147483648 bytes" in error_of(tmp_path / "a.npz")


@pytest.mark.parametrize("actual", [10, 40_000_000])
def test_false_sizes_are_detected(tmp_path: Path, actual: int) -> None:
    """The archive declares what the array needs, but unpacks to less or more."""
    path, declared = tmp_path / "a.npz", len(npy((2, 50, 50))) + 5000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy((2, 50, 50)) + bytes(actual))
        archive.writestr("y.npy", npy((2,), "|i1") + bytes(2))
    content = path.read_bytes()
    true = struct.pack("<I", len(npy((2, 50, 50))) + actual)
    assert content.count(true) == 2  # in the local header and in the central directory
    path.write_bytes(content.replace(true, struct.pack("<I", declared)))
    line = error_of(path)
    assert (
        "bytes that it declares: the file is broken or a zip bomb" in line
        or "not a complete .npz file (Bad CRC-32" in line
    )


@pytest.mark.usefixtures("unpacks_nothing")
def test_arrays_that_do_not_fit_the_disk_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=pixels(9, 9, 9), y=np.arange(9))
    monkeypatch.setattr("shutil.disk_usage", lambda _: Mock(free=100))
    assert "set TMPDIR to a larger disk" in error_of(tmp_path / "a.npz")


def test_a_stored_array_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", npy((2,), "|i1") + bytes(2))
        archive.writestr("x.npy", npy((2, 500, 500)) + bytes(50))
        archive.writestr("more.npy", bytes(100_000))
    content = path.read_bytes()
    declared = struct.pack("<I", len(npy((2, 500, 500))) + 500_000)
    path.write_bytes(content.replace(struct.pack("<I", len(npy((2, 500, 500))) + 50), declared))
    line = error_of(path)
    assert "more than the file has" in line or "Overlapped entries" in line  # newer versions of zipfile see it too


@pytest.mark.parametrize("key", ["x", "y", "layout"])
def test_pickles_in_an_npz_are_not_executed(tmp_path: Path, key: str) -> None:
    marker = tmp_path / "executed"
    arrays: dict[str, Any] = {"x": pixels(2, 5, 5), "y": [0, 1], key: np.array([Malicious(marker)] * 2, dtype=object)}
    np.savez(tmp_path / "a.npz", **arrays)
    line = error_of(tmp_path / "a.npz")
    assert "never unpickled" in line or "allow_pickle=False" in line
    assert not marker.exists()
    with np.load(tmp_path / "a.npz", allow_pickle=True) as trap:  # the pickle works
        assert trap[key].dtype == object
    assert marker.exists()


def test_a_bare_pickle_named_npz_is_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "a.npz").write_bytes(pickle.dumps(Malicious(marker)))
    assert "not a complete .npz file" in error_of(tmp_path / "a.npz")
    assert not marker.exists()


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
