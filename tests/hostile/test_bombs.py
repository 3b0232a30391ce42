"""Files that unpack to, or claim, enormous sizes: these are checked before anything is allocated, unpacked or read."""

import importlib
import io
import struct
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torchvision_stub
from data_helpers import error_of, pixels
from memory import limited_memory
from model_helpers import assert_refused
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.sources.data import open_data
from marginattack.sources.models import open_model

onnx = importlib.import_module("onnx")


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    torchvision_stub.install()


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


def deflated(path: Path, n: int, sides: tuple[int, ...] = (30, 30)) -> Path:
    """An archive of n black images, all of class 0."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", npy((n, *sides)) + bytes(n * int(np.prod(sides))))
        archive.writestr("y.npy", npy((n,), "<i8") + bytes(8 * n))
    return path


@pytest.mark.usefixtures("unpacks_nothing")
@pytest.mark.parametrize(("n", "sides", "member"), [(80_000, (30, 30), "x.npy"), (9_000_000, (1, 1), "y.npy")])
def test_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, n: int, sides: Any, member: str) -> None:
    path = deflated(tmp_path / "bomb.npz", n, sides)
    assert path.stat().st_size < 2**20
    line = error_of(path)
    assert f"'{member}', which grows more than 100-fold like a zip bomb, takes 69 MiB, more than 64 MiB" in line
    assert line.endswith("pass --max-gib N to allow N GiB")


def test_the_limit_can_be_raised_or_lowered(tmp_path: Path) -> None:
    assert len(open_data(str(deflated(tmp_path / "a.npz", 80_000)), max_gib=0.1)) == 80_000
    line = error_of(deflated(tmp_path / "b.npz", 100), max_gib=1e-5)
    assert "takes 0 MiB, more than 0 MiB" in line


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


def test_a_layout_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy((2, 5, 5, 3)) + bytes(150))
        archive.writestr("y.npy", npy((2,), "|i1") + bytes(2))
        archive.writestr("layout.npy", npy((10**11,), "<U4"))
    assert "choose one of nhw, nhwc, nchw" in error_of(tmp_path / "a.npz")


def test_targets_of_a_terabyte_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "t.npy").write_bytes(npy((10**11,), "<i8"))
    result = CliRunner().invoke(app, ["diagnose", "--model", "zoo:mnist-cnn", "--data", "samples:mnist", "--set",
                                      f"target={tmp_path}/t.npy"])  # fmt: skip
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "t.npy is neither random, least-likely nor a file of classes: mmap length" in result.stderr


# Models -------------------------------------------------------------------------------------------------------------


def initializer(name: str, values: list[int] | list[float], *dims: int) -> Any:
    return onnx.helper.make_tensor(name, 7 if isinstance(values[0], int) else 1, dims, values)


def graph(path: Path, *nodes: Any, values: tuple[Any, ...] = (), shape: tuple[Any, ...] = (2, 12)) -> str:
    """A graph of these nodes, to which x + sum(c) is added as its output."""
    h = onnx.helper
    last = [h.make_node("ReduceSum", ["c"], ["total"], keepdims=0), h.make_node("Add", ["x", "total"], ["y"])]
    ends = [h.make_tensor_value_info(name, 1, shape) for name in "xy"]
    made = h.make_graph([*nodes, *last], "g", ends[:1], ends[1:], initializer=list(values))
    onnx.save(h.make_model(made, opset_imports=[h.make_opsetid("", 13)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize(
    ("operator", "inputs", "values"),
    [
        ("ConstantOfShape", ["n"], [initializer("n", [2**31], 1)]),
        ("Expand", ["one", "n"], [initializer("one", [1.0], 1), initializer("n", [2**31], 1)]),
        ("Tile", ["x", "n"], [initializer("n", [2**14, 2**14], 2)]),
        (
            "Range",
            ["a", "b", "one"],
            [initializer(name, [value]) for name, value in (("a", 0), ("b", 2**31), ("one", 1))],
        ),
    ],
)
def test_a_graph_that_states_an_enormous_array_is_refused(
    tmp_path: Path, operator: str, inputs: list[str], values: list[Any]
) -> None:
    node = onnx.helper.make_node(operator, inputs, ["c"])
    with limited_memory():
        line = assert_refused("the array 'c' of .*m.onnx takes", graph(tmp_path / "m.onnx", node, values=tuple(values)))
    assert line.endswith("MiB, more than 256 MiB: pass --max-gib N to allow N GiB")


@pytest.mark.parametrize("shape", [(2, 2**31), (2**31, 12), ("n", 2**20, "h", "w")])
def test_an_enormous_input_is_refused(tmp_path: Path, shape: tuple[Any, ...]) -> None:
    node = onnx.helper.make_node("Identity", ["x"], ["c"])
    with limited_memory():
        assert_refused("more than 256 MiB", graph(tmp_path / "m.onnx", node, shape=shape))


def external(folder: Path, size: int, length: int | None) -> str:
    """A graph whose 12 weights are in another file of this size."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[12], data_location=onnx.TensorProto.EXTERNAL)
    entries = {"location": "w.bin", **({} if length is None else {"length": str(length)})}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    with (folder / "w.bin").open("wb") as file:
        file.write(np.arange(12, dtype=np.float32).tobytes())
        file.truncate(size)
    return graph(folder / "m.onnx", onnx.helper.make_node("Mul", ["x", "w"], ["c"]), values=(tensor,))


@pytest.mark.parametrize(
    ("size", "length", "message"),
    [
        (2**33, None, "the external data of .*m.onnx takes 8,192 MiB, more than 2,048 MiB"),
        (2**33, 2**33, "the external data of .*m.onnx takes 8,192 MiB, more than 2,048 MiB"),
        (48, 2**33, "w.bin has 48 bytes, not 8589934592: copy it again"),
    ],
)
def test_enormous_external_data_is_refused(tmp_path: Path, size: int, length: int | None, message: str) -> None:
    with limited_memory():
        assert_refused(message, external(tmp_path, size, length))


def test_external_data_is_loaded_and_belongs_to_the_digest(tmp_path: Path) -> None:
    opened = open_model(external(tmp_path, 48, 48))
    images = torch.rand(2, 12)
    assert torch.allclose(opened.module(images), images + (images * torch.arange(12.0)).sum())
    (tmp_path / "w.bin").write_bytes(np.ones(12, np.float32).tobytes())
    assert open_model(f"{tmp_path}/m.onnx").digest != opened.digest


@pytest.mark.parametrize("name", ["m.onnx", "m.pt", "m.pt2", "w.safetensors", "w.pth"])
def test_enormous_files_are_not_read(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**33)
    source = f"timm:test_resnet@{tmp_path}/{name}" if name[0] == "w" else f"{tmp_path}/{name}"
    with limited_memory():
        assert_refused("takes 8,192 MiB, more than 4,096 MiB: pass --max-gib", source, trust_pickle=True)


def test_compressed_weights_are_not_unpacked(tmp_path: Path) -> None:
    stored = io.BytesIO()
    torch.save({"weight": torch.zeros(2**20)}, stored)
    with zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for info in zipfile.ZipFile(stored).infolist():
            archive.writestr(info.filename, zipfile.ZipFile(stored).read(info))
    assert_refused("w.pth, unpacked, takes 4 MiB, more than 0 MiB", f"timm:test_resnet@{tmp_path}/w.pth")
