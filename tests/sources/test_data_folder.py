"""Image folders: all modes and sizes, files of labels, and broken or hostile files."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import Malicious, error_of, pixels, png, read_all
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from marginattack.errors import InputError
from marginattack.sources.data import ImageSize, open_data


@pytest.fixture
def classes(tmp_path: Path) -> tuple[Path, list[NDArray[Any]]]:
    """Three classes, seven colour images."""
    values = [pixels(6, 5, 3) for _ in range(7)]
    names = ["ant/b.png", "ant/c/d.PNG", "bee/a.png", "bee/b.png", "cat/x.png", "cat/y.bmp", "cat/z.tif"]
    for file, value in zip(names, values, strict=True):
        png(tmp_path / "images" / file, value)
    (tmp_path / "images" / "cat" / "notes.txt").write_text("not an image")
    png(tmp_path / "images" / ".thumbnails" / "t.png", values[0])
    return tmp_path / "images", values


def test_folder_of_classes(classes: tuple[Path, list[NDArray[Any]]]) -> None:
    path, values = classes
    data = open_data(str(path))
    x, y = read_all(data)
    assert data.classes == ["ant", "bee", "cat"]
    assert y.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert x.equal(torch.from_numpy(np.stack(values)).permute(0, 3, 1, 2).float() / 255)


def test_folder_digest_depends_on_the_content(classes: tuple[Path, list[NDArray[Any]]]) -> None:
    path, values = classes
    before = open_data(str(path)).digest()
    moved = path.rename(path.parent / "moved")
    assert open_data(str(moved)).digest() == before
    assert open_data(str(moved), image_size=ImageSize(4, 4)).digest() != before
    png(moved / "ant" / "b.png", values[1])
    assert open_data(str(moved)).digest() != before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "file,label\nc/b.png,3\na.png,1\nb.png,2\n"),
        ("l.csv", '\ufefflabel,file,note\n1,a.png,"x,\ny"\n2,b.png,\n3,c/b.png,\n'),
        ("l.txt", "1\n2\n3\n\n"),
        ("l.npy", ""),
    ],
)
def test_folder_with_labels(tmp_path: Path, name: str, text: str) -> None:
    for file in ("a.png", "b.png", "c/b.png"):
        png(tmp_path / "flat" / file, pixels(6, 5))
    if text:
        (tmp_path / name).write_text(text)
    else:
        np.save(tmp_path / name, np.array([1, 2, 3], np.uint8))
    data = open_data(str(tmp_path / "flat"), labels=str(tmp_path / name))
    assert read_all(data)[1].tolist() == [1, 2, 3]
    assert data.shape == (1, 6, 5)
    assert data.classes is None


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("l.csv", "file,label\na.png,1\n", "1 of 2 images have no label, first 'b.png'"),
        (
            "l.csv",
            "file,label\na.png,1\nb.png,1\nc.png,2\n",
            "line 4 names 'c.png', which is not an image of the folder",
        ),
        ("l.csv", "file,label\na.png,1\na.png,2\n", "line 3 names 'a.png', twice"),
        ("l.csv", "file,label\na.png,1\nb.png,1.5\n", "line 3 is '1.5', not a class index"),
        ("l.csv", "file,label\na.png,1\nb.png\n", "line 3 is '', not a class index"),
        ("l.csv", "a.png,1\nb.png,1\n", "must name the columns file,label"),
        ("l.csv", "", "must name the columns file,label"),
        ("l.txt", "1\n2\n3\n", "3 labels for 2 images"),
        ("l.txt", "1\n-2\n", "line 2 is '-2'"),
        ("l.txt", "1\ncat\n", "line 2 is 'cat'"),
        ("l.txt", "1\n" + "9" * 5000 + "\n", "not a class index"),
        ("l.json", "[1, 2]", "not one of .csv, .txt, .npy"),
        ("l.npy", "garbage", "cannot be read"),
    ],
)
def test_wrong_labels(tmp_path: Path, name: str, text: str, line: str) -> None:
    for file in ("a.png", "b.png"):
        png(tmp_path / "flat" / file, pixels(6, 5))
    (tmp_path / name).write_text(text)
    assert line in error_of(tmp_path / "flat", labels=str(tmp_path / name))


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (np.array([1.0, 2.0]), "float64"),
        (np.array([1, 2, 3]), "3 labels for 2"),
        (np.array([1, -3]), "row 1 is -3"),
        (np.array([[1, 2]]), "(1, 2)"),
    ],
)
def test_wrong_npy_labels(tmp_path: Path, labels: Any, line: str) -> None:
    for file in ("a.png", "b.png"):
        png(tmp_path / "flat" / file, pixels(6, 5))
    np.save(tmp_path / "l.npy", labels)
    assert line in error_of(tmp_path / "flat", labels=str(tmp_path / "l.npy"))


def test_pickled_labels_are_not_executed(tmp_path: Path) -> None:
    png(tmp_path / "flat" / "a.png", pixels(6, 5))
    np.save(tmp_path / "l.npy", np.array([Malicious(tmp_path / "executed")], dtype=object), allow_pickle=True)
    assert "cannot be read" in error_of(tmp_path / "flat", labels=str(tmp_path / "l.npy"))
    (tmp_path / "l.npy").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    assert "cannot be read" in error_of(tmp_path / "flat", labels=str(tmp_path / "l.npy"))
    assert not (tmp_path / "executed").exists()


def test_folders_without_labels(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    assert "no class folders: make one sub-folder per class, or pass --labels FILE" in error_of(tmp_path / "flat")
    png(tmp_path / "flat" / "a.png", pixels(6, 5))
    assert "1 images are outside the class folders ('a.png')" in error_of(tmp_path / "flat")
    png(tmp_path / "two" / "ant" / "a.png", pixels(6, 5))
    (tmp_path / "two" / "bee").mkdir()
    assert "class folder 'bee' has no images" in error_of(tmp_path / "two")
    assert "no such file" in error_of(tmp_path / "two", labels=str(tmp_path / "none.csv"))
    (tmp_path / "empty").mkdir()
    assert "no images" in error_of(tmp_path / "empty", labels=str(tmp_path / "none.csv"))


def test_unreadable_images_are_named_before_the_run(classes: tuple[Path, list[NDArray[Any]]]) -> None:
    path, _ = classes
    (path / "bee" / "a.png").write_bytes(b"no image at all")
    (path / "cat" / "y.bmp").write_bytes(b"")
    line = error_of(path)
    assert "2 of 7 images cannot be used, first 'bee/a.png' (not an image that pillow can read)" in line
    (path / "bee" / "a.png").unlink()
    os.mkfifo(path / "bee" / "a.png")  # reading it would block for ever
    assert "'bee/a.png' (not a regular file)" in error_of(path)


def test_a_truncated_image_is_named_when_it_is_read(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        png(tmp_path / "ant" / name, pixels(64, 64))
    path = tmp_path / "ant" / "b.png"
    path.write_bytes(path.read_bytes()[:2000])
    data = open_data(str(tmp_path))
    data.read([0])
    with pytest.raises(InputError, match=r"cannot use 'ant/b.png' \(.*truncated.*\): repair or remove it"):
        data.read([0, 1])
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read 'ant/b.png': FileNotFoundError"):
        data.digest()


def test_postscript_is_never_run(tmp_path: Path) -> None:
    """Pillow would pass it to Ghostscript, whatever its file name."""
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "a.png").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    with Image.open(tmp_path / "ant" / "a.png") as image:
        assert image.format == "EPS"
    assert "not an image that pillow can read" in error_of(tmp_path)


@pytest.mark.parametrize("side", [10_000, 20_000])  # where pillow warns, and where it raises
def test_decompression_bombs_are_refused(tmp_path: Path, side: int) -> None:
    (tmp_path / "ant").mkdir()
    png(tmp_path / "ant" / "a.png", pixels(5, 5))
    path = tmp_path / "ant" / "a.png"
    content = path.read_bytes()
    ihdr = b"IHDR" + struct.pack(">II", side, side) + content[24:29]
    path.write_bytes(content[:12] + ihdr + struct.pack(">I", PngImagePlugin._crc32(ihdr)) + content[33:])
    line = error_of(tmp_path, image_size=ImageSize(5, 5))
    assert "1 of 1 images cannot be used" in line
    assert "decompression bomb" in line


def test_sizes_that_differ_need_an_image_size(tmp_path: Path) -> None:
    png(tmp_path / "ant" / "a.png", pixels(30, 40))
    png(tmp_path / "ant" / "b.png", pixels(40, 30))
    line = error_of(tmp_path)
    assert "'ant/a.png' has 40x30 pixels and 'ant/b.png' has 30x40: resize and crop them, for example" in line
    assert open_data(str(tmp_path), image_size=ImageSize(25, 20)).shape == (1, 20, 20)
    assert open_data(str(tmp_path), image_size=ImageSize(None, 30)).shape == (1, 30, 30)
    assert "33x25 pixels are smaller than the crop of 30" in error_of(tmp_path, image_size=ImageSize(25, 30))
    assert "differ in size" in error_of(tmp_path, image_size=ImageSize(25, None))
    png(tmp_path / "ant" / "a.png", pixels(1, 9000))
    assert "it would be resized to 4500000x500 pixels" in error_of(tmp_path, image_size=ImageSize(500, 500))


@pytest.mark.parametrize(
    ("text", "size"), [("256/224", (256, 224)), ("224", (224, 224)), ("256/", (256, None)), ("/224", (None, 224))]
)
def test_valid_image_sizes(text: str, size: tuple[int | None, int | None]) -> None:
    assert ImageSize.parse(text) == size


@pytest.mark.parametrize("text", ["", "/", "0", "a", "256x224", "-1", "256/224/1", "1e3"])
def test_invalid_image_sizes(text: str) -> None:
    with pytest.raises(InputError, match="write 256/224"):
        ImageSize.parse(text)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("other_mode", ["L", "RGB"])
def test_modes(tmp_path: Path, mode: str, other_mode: str) -> None:
    """One channel if all images are grey, else three. Alpha is dropped, 16 bits are kept."""
    grey = np.arange(240, dtype=np.uint8).reshape(15, 16)
    if mode == "I;16":
        png(tmp_path / "ant" / "a.tif", grey.astype(np.uint16) * 257 + 1)
    else:
        png(tmp_path / "ant" / "a.tif", np.stack([grey] * 3, 2) if mode == "CMYK" else grey, mode)
    png(tmp_path / "ant" / "b.png", grey, other_mode)
    data = open_data(str(tmp_path))
    x, _ = read_all(data)
    assert data.shape[0] == (1 if mode in ("1", "L", "LA", "I;16") and other_mode == "L" else 3)
    expected = torch.from_numpy(grey).float() / 255
    if mode == "I;16":
        assert x[0].equal(((expected * 255 * 257 + 1) / 65535).expand_as(x[0]))
    elif mode != "1":
        assert x[0].equal(expected.expand_as(x[0]))
    assert x[1].equal(expected.expand_as(x[1]))


def test_16_bits_are_resized_without_loss_of_depth(tmp_path: Path) -> None:
    png(tmp_path / "ant" / "a.png", np.full((20, 30), 12345, np.uint16))
    x, _ = read_all(open_data(str(tmp_path), image_size=ImageSize(10, 8)))
    assert (x - 12345 / 65535).abs().max() < 1e-6


def test_floating_point_images_are_refused(tmp_path: Path) -> None:
    png(tmp_path / "ant" / "a.tif", np.ones((5, 5), np.float32))
    assert "pixels of mode F are neither grey nor RGB" in error_of(tmp_path)
