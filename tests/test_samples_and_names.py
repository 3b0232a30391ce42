"""Which samples a run takes, and what they and their classes are called."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_folders import MODELS
from typer.testing import CliRunner

import marginattack as ma
from marginattack.cli import app
from marginattack.errors import InputError
from marginattack.sources.classes import read_classes
from marginattack.storage.run_folder import RunFolder

QUICK = ["--attack", "deepfool", "--budget", "6", "--set", "shard=8", "--despite-findings"]
COUNTS = [40, 12, 3, 25]  # of each class


def cli(*arguments: str, code: int = 0) -> str:
    """The output of a command that succeeds, or the errors of one that ends with another code."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images sorted by class, as data sets often are."""
    path = tmp_path_factory.mktemp("sorted") / "data.npz"
    x = np.random.default_rng(0).random((sum(COUNTS), 3, 6, 6), dtype=np.float32)
    np.savez(path, x=x, y=np.repeat(range(4), COUNTS), names=[f"/home/me/{i}.png" for i in range(sum(COUNTS))])
    return path


def measure(data: Path, out: Path, *more: str) -> ma.Margins:
    cli("measure", "--model", f"{MODELS}:small", "--data", str(data), *QUICK, "--out", str(out), *more)
    return ma.Margins.load(out)


def ids(run: Path) -> list[int]:
    files = sorted((run / "margins").glob("*/*.parquet"))
    return [i for file in files for i in pq.read_table(file)["id"].to_pylist()]


def test_a_sample_is_balanced_and_seeded(data: Path, tmp_path: Path) -> None:
    first = measure(data, tmp_path / "a", "--sample", "20")
    assert sorted(first.label.bincount().tolist()) == [3, 5, 6, 6]  # there are three of class 2
    assert len(set(ids(tmp_path / "a"))) == 20
    assert first.label[:4].sort().values.tolist() == [0, 1, 2, 3]  # a part of the run is balanced too
    measure(data, tmp_path / "b", "--sample", "12", "--shuffle", "0")
    measure(data, tmp_path / "c", "--sample", "12", "--shuffle", "1")
    assert ids(tmp_path / "a")[:12] == ids(tmp_path / "b") != ids(tmp_path / "c")
    limited = measure(data, tmp_path / "d", "--limit", "20")
    assert ids(tmp_path / "d") == list(range(20))
    assert limited.label.unique().tolist() == [0]  # the first ones


def test_a_sampled_run_resumes_and_notices_other_samples(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = measure(data, run, "--sample", "20")
    last = sorted((run / "margins").glob("*/*.parquet"))[-1]
    last.unlink()
    assert measure(data, run, "--sample", "20").distance.equal(before.distance)
    source = ["--model", f"{MODELS}:small", "--data", str(data), *QUICK, "--out", str(run)]
    assert "holds a run with other settings (sample was" in cli("measure", *source, "--sample", "21", code=2)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["identity"]["sample"][0] = manifest["identity"]["sample"][1]
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="was changed after it was written"):
        RunFolder(run)


def test_sample_and_limit_exclude_each_other(data: Path, tmp_path: Path) -> None:
    source = ["--model", f"{MODELS}:small", "--data", str(data), "--out", str(tmp_path / "run")]
    assert "leave out --limit" in cli("measure", *source, "--sample", "3", "--limit", "3", code=2)
    assert "greater than or equal to 1" in cli("measure", *source, "--sample", "0", code=2)


def test_names_of_samples_and_classes(data: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text(json.dumps({"0": "cat", "1": "dog", "2": "eel", "3": "fox"}))
    names = ["--classes", str(tmp_path / "classes.json")]
    margins = measure(data, tmp_path / "run", "--sample", "12", "--only-correct", *names)
    assert margins.names == tuple(f"{i}.png" for i in ids(tmp_path / "run"))  # no absolute paths
    assert margins.classes == ("cat", "dog", "eel", "fox")
    cli("bound", str(tmp_path / "run"), "--model", f"{MODELS}:small", "--method", "ibp")
    text = cli("report", str(tmp_path / "run"), "--text", "--figures", str(tmp_path / "figures"))
    (table,) = (tmp_path / "figures").glob("widest-*.csv")
    assert table.read_text().splitlines()[0].startswith("run,id,name,label,lower,upper")
    assert any(f"widest brackets: samples {name} (" in text for name in margins.names)
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"/home/me" not in file.read_bytes()
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    source = ["--model", f"{MODELS}:small", "--data", str(data), *QUICK, "--out", str(tmp_path / "other")]
    line = cli("measure", *source, "--classes", str(tmp_path / "three.txt"), code=2)
    assert "three.txt has 3 names, but the model has 4 classes: give one name per class" in line


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "cat\ndog \n", ["cat", "dog"]),
        ("a.json", '["cat", "dog"]', ["cat", "dog"]),
        ("a.json", '{"1": ["n02", "dog"], "0": ["n01", "cat"]}', ["cat", "dog"]),
        ("a.json", '{"1": "dog"}', "class 0 has no name"),
        ("a.json", "[1, 2]", "it is not a list of names"),
        ("a.json", '"cat"', "it is not a list of names"),
        ("a.json", "{", "cannot be read"),
        ("a.txt", "", "holds no names"),
    ],
)
def test_files_of_class_names(tmp_path: Path, name: str, text: str, expected: Any) -> None:
    (tmp_path / name).write_text(text)
    if isinstance(expected, list):
        assert read_classes(str(tmp_path / name)) == expected
        return
    with pytest.raises(InputError, match=expected):
        read_classes(str(tmp_path / name))


def test_bounds_and_the_grid_of_8_bits_exclude_each_other(data: Path, tmp_path: Path) -> None:
    source = ["--model", f"{MODELS}:small", "--data", str(data), "--out", str(tmp_path / "run")]
    line = cli("measure", *source, "--bounds", "0,1", "--lattice", "255", code=2)
    assert "--lattice needs pixels in [0, 1]: leave out --lattice, or --bounds" in line
