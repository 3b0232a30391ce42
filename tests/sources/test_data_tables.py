"""Arrays of any shape and tables of numbers: read as written, bounded before they are read, refused in one line."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data_helpers import RNG, Malicious, error_of, pixels
from safetensors.numpy import save_file

from marginattack.errors import InputError
from marginattack.sources.data import open_data
from marginattack.sources.features import read_bounds, read_fixed, read_scale

TABLE = pd.DataFrame(
    {"name": ["a", "b", "/home/me/c"], "age": [40, 30, 20], "income": [1e5, 2.5e4, -3.0], "sex": [True, False, True],
     "label": [2, 0, 1]}
)  # fmt: skip


def write(path: Path, table: pd.DataFrame = TABLE) -> Path:
    """Write a table as what its name says."""
    if path.suffix == ".csv":
        table.replace({True: 1, False: 0}).to_csv(path, index=False)
    else:
        table.to_parquet(path)
    return path


@pytest.fixture(params=["t.csv", "t.parquet"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / request.param)


@pytest.mark.parametrize("shape", [(5,), (1, 40), (2, 40), (3, 2, 4, 4)])
def test_arrays_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x, y = RNG.normal(size=(6, *shape)).astype(np.float32), RNG.integers(0, 3, 6)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "named.npz", inputs=x, classes=y)
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "y.npy", y)
    save_file({"x": x, "y": y}, tmp_path / "a.safetensors")
    chosen = {"features": "inputs", "labels": "classes"}
    options: dict[str, dict[str, Any]] = {"named.npz": chosen, "a.npy": {"labels": str(tmp_path / "y.npy")}}
    digests = set()
    for name in ("a.npz", "named.npz", "a.npy", "a.safetensors"):
        data = open_data(str(tmp_path / name), raw=True, **options.get(name, {}))
        assert (data.shape, len(data)) == (shape, 6)
        inputs, labels = data.read([5, 0, 1])
        assert inputs.equal(torch.from_numpy(x[[5, 0, 1]]))
        assert labels.tolist() == y[[5, 0, 1]].tolist()
        digests.add(data.digest())
        assert "but pixels are in [0, 1]" in error_of(tmp_path / name, **options.get(name, {}))
    assert len(digests) == 1


def test_layout_can_be_stated(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=pixels(4, 30, 6), y=np.zeros(4, int))
    assert open_data(str(tmp_path / "a.npz")).shape == (1, 30, 6)
    assert open_data(str(tmp_path / "a.npz"), layout="as-is").shape == (30, 6)
    assert "layout is 'nchw' for x of shape (4, 30, 6)" in error_of(tmp_path / "a.npz", layout="nchw")


def test_integers_are_taken_as_they_are_where_bounds_are_stated(tmp_path: Path) -> None:
    x = pixels(3, 4)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 2])
    assert open_data(str(tmp_path / "a.npz")).read([1])[0].equal(torch.from_numpy(x[1:2]).float() / 255)
    assert open_data(str(tmp_path / "a.npz"), raw=True).read([1])[0].equal(torch.from_numpy(x[1:2]).float())
    np.savez(tmp_path / "b.npz", x=x.astype(np.int32), y=[0, 1, 2])
    assert "x is int32: pixels are uint8 in 0..255 or floats in [0, 1]; state the bounds" in error_of(
        tmp_path / "b.npz"
    )
    assert open_data(str(tmp_path / "b.npz"), raw=True).read([1])[0].equal(torch.from_numpy(x[1:2]).float())


def test_tables(table: Path) -> None:
    data = open_data(str(table), raw=True)
    assert (data.features, data.shape, data.classes) == (["age", "income", "sex"], (3,), None)
    assert data.names == ["a", "b", "c"]  # no absolute paths
    x, y = data.read([0, 1, 2])
    assert x.tolist() == [[40, 1e5, 1], [30, 2.5e4, 0], [20, -3, 1]]
    assert y.tolist() == [2, 0, 1]
    some = open_data(str(table), raw=True, features="income, age", labels="sex")
    assert some.features == ["income", "age"]
    assert some.read([2])[0].tolist() == [[-3, 20]]
    assert some.digest() != data.digest()
    assert data.stamp() == open_data(str(table), raw=True).stamp()


def test_class_names_are_numbered_in_alphabetical_order(tmp_path: Path, table: Path) -> None:
    named = write(tmp_path / f"named{table.suffix}", TABLE.assign(label=["low", "high", "low"]))
    data = open_data(str(named), raw=True)
    assert data.classes == ["high", "low"]
    assert data.read([0, 1, 2])[1].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("change", "options", "line"),
    [
        ({}, {"labels": "lable"}, "no column 'lable': choose with --labels; did you mean label"),
        ({}, {"features": "age,incom"}, "no column 'incom': choose with --features; did you mean income"),
        ({}, {"features": "age,label"}, "names the label or a column twice"),
        ({"label": [0.5, 1, 2]}, {}, "labels are integer class indices"),
        ({"label": [0, -1, 2]}, {}, "the label of row 1 is -1"),
        ({"age": [1.0, None, 3.0]}, {}, "column 'age' is empty in row 1"),
        ({"age": [1.0, np.inf, 3.0]}, {}, "x holds NaN or infinity in row 1: clean the data"),
        ({"age": ["x", "y", "z"]}, {}, "--features A,B,C"),
        ({}, {"raw": False}, "state the bounds of other data with --bounds LO,HI, or -inf,inf"),
        ({}, {"split": "test"}, "--split test does not apply to this form of data"),
    ],
)
def test_table_refusals(tmp_path: Path, table: Path, change: Any, options: Any, line: str) -> None:
    changed = write(tmp_path / f"changed{table.suffix}", TABLE.assign(**change))
    assert line in error_of(changed, **{"raw": True, **options})


def test_a_table_without_labels_names_its_columns(tmp_path: Path, table: Path) -> None:
    bare = write(tmp_path / f"bare{table.suffix}", TABLE.drop(columns="label"))
    line = error_of(bare, raw=True)
    assert "no column 'label': choose with --labels; it has" in line
    assert "did you mean" not in line


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet", "a.npy", "a.safetensors", "empty.csv"):
        (tmp_path / name).write_bytes(b"" if name == "empty.csv" else b"\x00\xff not a table")
        error_of(tmp_path / name, **({"labels": "y.npy"} if name == "a.npy" else {}))
        assert "no such file" in error_of(tmp_path / f"absent-{name}", **({"labels": "y"} if name == "a.npy" else {}))
    (tmp_path / "twice.csv").write_text("a,a,label\n1,2,0\n")
    assert "2 columns are named 'a': rename them" in error_of(tmp_path / "twice.csv")
    np.save(tmp_path / "x.npy", pixels(3, 4))
    assert "an .npy file holds no labels: pass --labels" in error_of(tmp_path / "x.npy")


# Limits ---------------------------------------------------------------------------------------------------------------


def test_a_table_that_grows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    n = 5_000_000
    pq.write_table(
        pa.table({name: pa.array(np.zeros(n, np.float32)) for name in "abcd"} | {"label": np.zeros(n, np.int8)}),
        tmp_path / "bomb.parquet", compression="zstd",
    )  # fmt: skip
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**17
    line = error_of(tmp_path / "bomb.parquet", raw=True)
    assert "grows more than 100-fold, takes 114 MiB, more than 64 MiB: pass --max-gib N" in line
    assert "takes 0 MiB, more than 0 MiB: pass --max-gib N" in error_of(write(tmp_path / "a.csv"), max_gib=1e-8)


def test_lines_and_headers_of_gigabytes_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "line.csv").open("wb") as file:
        file.write(b"a,label\n")
        file.truncate(2**25)  # one line of zeros
    assert "not a CSV table" in error_of(tmp_path / "line.csv", raw=True)
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    assert "its header has 1099511627776 bytes" in error_of(tmp_path / "a.safetensors")
    about = {"x": {"dtype": "U8", "shape": [2**20, 2**20], "data_offsets": [0, 2**40]}}
    about["y"] = {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}
    header = json.dumps(about).encode()
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    assert "do not fit its shape (1048576, 1048576)" in error_of(tmp_path / "b.safetensors")
    np.save(tmp_path / "c.npy", pixels(3, 4))
    content = (tmp_path / "c.npy").read_bytes()
    (tmp_path / "c.npy").write_bytes(content.replace(b"(3, 4)", b"(9, 4)"))
    assert "needs 164: write it again" in error_of(tmp_path / "c.npy", labels="y.npy")


def test_pickles_in_npy_files_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[Malicious(tmp_path / "executed")]], dtype=object), allow_pickle=True)
    assert "pickles are never unpickled" in error_of(tmp_path / "x.npy", labels="y.npy")
    assert not (tmp_path / "executed").exists()


# Per feature ----------------------------------------------------------------------------------------------------------


def test_bounds_scale_and_fixed_features(table: Path, tmp_path: Path) -> None:
    data = open_data(str(table), raw=True)
    assert read_bounds("-1,inf", data) == (-1, np.inf)
    lo, hi = read_bounds("age=0:120, sex=0:1", data)
    assert lo.tolist() == [0, -np.inf, 0]
    assert hi.tolist() == [120, np.inf, 1]
    assert read_scale("2.5", data) == 2.5
    assert read_scale("1,2,3", data).tolist() == [1, 2, 3]
    assert read_scale("income=1e4", data).tolist() == [1, 1e4, 1]
    assert read_fixed("sex", data).tolist() == read_fixed("2", data).tolist() == [False, False, True]
    file = tmp_path / "f.npz"
    np.savez(file, bounds=[[0, 0, 0], [9, 9, 1]], scale=[1.0, 2.0, 3.0], mask=[True, False, False], text=["a"])
    assert [each.tolist() for each in read_bounds(f"{file}:bounds", data)] == [[0, 0, 0], [9, 9, 1]]
    assert read_scale(f"{file}:scale", data).tolist() == [1, 2, 3]
    assert read_fixed(f"{file}:mask", data).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("read", "text", "line"),
    [
        (read_bounds, "0", "--bounds 0 has 1 number: give LO,HI"),
        (read_bounds, "1,-1", "--bounds 1,-1: the lower bound 1 is above the upper bound -1: give the lower one first"),
        (read_bounds, "age=100:18", "--bounds age=100:18: the lower bound 100 is above the upper bound 18"),
        (read_bounds, "{}:reversed", "reversed: the lower bound 2 is above the upper bound 1"),
        (read_bounds, "low,high", "is not a list of numbers: give LO,HI"),
        (read_bounds, "agge=0:1", "names no column of .*; did you mean age"),
        (read_bounds, "age=0", "'age=0' is not a number or range: give LO,HI"),
        (read_bounds, "{}:scale", r"has shape \(3,\), not \(2, …\): save np.stack"),
        (read_bounds, "{}:absent", "no array 'absent': it has 'scale', 'text', 'reversed'"),
        (read_bounds, "absent.npz:x", "no such file"),
        (read_scale, "1,2", "has 2 numbers for inputs of 3"),
        (read_scale, "{}:text", "is <U1: save numbers"),
        (read_fixed, "sexx", "'sexx' is not a feature; did you mean sex"),
        (read_fixed, "7", "'7' is not a feature"),
        (read_fixed, "{}:scale", "holds other numbers than 0 and 1"),
    ],
)
def test_features_that_make_no_sense(tmp_path: Path, table: Path, read: Any, text: str, line: str) -> None:
    np.savez(tmp_path / "f.npz", scale=[1.0, 2.0, 3.0], text=["a"], reversed=[[0, 2, 0], [1, 1, 1]])
    with pytest.raises(InputError, match=line):
        read(text.format(tmp_path / "f.npz"), open_data(str(table), raw=True))
