"""Malicious or broken files, through the real command line: one line each, nothing executed, nothing written."""

import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import MODELS, call, data

MARKER = "executed"


class Malice:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def pickle(folder: Path) -> list[str]:
    torch.save(Malice(folder / MARKER), folder / "model.pt")
    return ["--model", str(folder / "model.pt")]


def objects(folder: Path) -> list[str]:
    np.savez(folder / "objects.npz", x=np.array([Malice(folder / MARKER)], dtype=object), y=np.array([1]))
    return ["--data", str(folder / "objects.npz")]


def bomb(folder: Path) -> list[str]:
    """Two gigabytes of zeros in two megabytes."""
    header, shape = io.BytesIO(), (720_000, 3, 32, 32)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    labels = io.BytesIO()
    np.save(labels, np.zeros(720_000, dtype=np.uint8))
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", labels.getvalue())
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            left = int(np.prod(shape))
            while left:
                left -= member.write(bytes(min(left, 1 << 24)))
    return ["--data", str(folder / "bomb.npz")]


def unreadable(folder: Path) -> list[str]:
    (folder / "images/cat").mkdir(parents=True)
    (folder / "images/cat/1.png").write_bytes(b"no image")
    return ["--data", str(folder / "images")]


def labels(folder: Path) -> list[str]:
    from PIL import Image

    (folder / "flat").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((6, 6, 3), dtype=np.uint8)).save(folder / "flat" / name)
    (folder / "labels.csv").write_text("file,label\na.png,0\nc.png,1\n")
    return ["--data", str(folder / "flat"), "--labels", str(folder / "labels.csv")]


CASES = {
    pickle: "model.pt is a pickle, which is code",
    objects: "holds Python objects",
    bomb: "bomb.npz: 'x.npy'",
    unreadable: "1 of 1 images cannot be used, the first is 'cat/1.png'",
    labels: "labels.csv",
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_error_is_one_line_and_nothing_is_executed(tmp_path: Path, make: Any) -> None:
    sources = {"--model": f"{MODELS}:small", "--data": str(data(tmp_path / "good.npz", 8))}
    given = make(tmp_path)
    sources |= dict(zip(given[::2], given[1::2], strict=True))
    arguments = [word for pair in sources.items() for word in pair]
    result = call([sys.executable, "-m", "marginattack", "measure", *arguments, "--out", str(tmp_path / "run")])
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert CASES[make] in result.stderr
    assert not (tmp_path / MARKER).exists()
    assert not (tmp_path / "run").exists()
