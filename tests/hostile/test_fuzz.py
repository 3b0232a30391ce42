"""Damaged files: each is read, or refused in one line; nothing runs, and no more than 512 MiB are taken.

2,000 cases: 600 manifests, 400 shards, 550 archives, 350 graphs and 100 programs, the same in every run.
"""

import importlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
import torchvision_stub
from damage import as_json, damaged_bytes, damaged_graph, damaged_json, damaged_npz, damaged_shard
from data_helpers import Malicious
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from memory import limited_memory
from run_folders import MODELS, data
from safetensors.numpy import save_file
from torch import nn

from marginattack.cli.common import dump_json
from marginattack.errors import InputError, MarginAttackError
from marginattack.margins import Margins
from marginattack.report.text import summarize_run
from marginattack.runs.run import run
from marginattack.runs.settings import read_settings
from marginattack.sources.data import open_data
from marginattack.sources.models import open_model
from marginattack.storage.run_folder import RunFolder

onnx = importlib.import_module("onnx")
OLD = sorted((Path(__file__).parent.parent / "data").glob("run-format-*"))
RUNS = pytest.mark.parametrize("old", [*OLD, None], ids=lambda path: path.name if path else "now")


def cases(count: int) -> Callable[[Any], Any]:
    """So many cases, the same in every run."""
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=checks,
        phases=[Phase.generate],
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which code in a file would leave a folder ``executed``."""
    monkeypatch.chdir(tmp_path)
    torchvision_stub.install()
    return tmp_path


def check(folder: Path, read: Callable[[], Any]) -> None:
    """Read a damaged file: it is read, or refused in one line, within bounds, and nothing in it runs."""
    line = ""
    with limited_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read()
        except MarginAttackError as error:
            line = str(error)
    assert "\n" not in line
    assert len(line) < 1000
    assert not re.search("MemoryError|bad_alloc|allocat", line)  # of more than the machine has
    assert not (folder / "executed").exists()


# Run folders --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten samples in three shards."""
    folder = tmp_path_factory.mktemp("measured")
    flags = {"model": f"{MODELS}:small", "data": str(data(folder / "a.npz", 10)), "attacks": ["fgsm"], "shard": 4}
    run(read_settings(None, [], flags), folder / "run", progress=silent, on_finding=lambda finding: None)
    return folder / "run"


@contextmanager
def silent(name: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def read_run(path: Path) -> None:
    """Read a run as report, compare, resume and ``Margins.load`` do."""
    opened = RunFolder(path)
    dump_json(summarize_run(opened))
    for shard, part in opened.finished():
        opened.images(part, shard)
    opened.traces()
    Margins.load(path)
    with suppress(InputError):  # old formats cannot be resumed
        RunFolder.check_compatible(path, opened.manifest["identity"])


@RUNS
def test_damaged_manifests(old: Path | None, measured: Path, folder: Path) -> None:
    shutil.copytree(old or measured, folder / "run")
    file = folder / "run" / "manifest.json"
    content = file.read_bytes()

    @cases(ceil(600 / (len(OLD) + 1)))
    @given(st.one_of(damaged_json(json.loads(content)).map(as_json), damaged_bytes(content)))
    def each(damaged: bytes) -> None:
        file.write_bytes(damaged)
        check(folder, lambda: read_run(folder / "run"))

    read_run(folder / "run")
    each()


@RUNS
def test_damaged_shards(old: Path | None, measured: Path, folder: Path) -> None:
    shutil.copytree(old or measured, folder / "run")
    files = sorted((folder / "run").rglob("*.parquet"))
    contents = {file: file.read_bytes() for file in files}

    @cases(ceil(400 / (len(OLD) + 1)))
    @given(st.sampled_from(files).flatmap(lambda file: st.tuples(st.just(file), damaged_shard(contents[file]))))
    def each(case: tuple[Path, bytes]) -> None:
        file, damaged = case
        file.write_bytes(damaged)
        try:
            check(folder, lambda: read_run(folder / "run"))
        finally:
            file.write_bytes(contents[file])

    each()


# Data and models ----------------------------------------------------------------------------------------------------


def test_damaged_npz(folder: Path) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (10, 6, 5, 3), np.uint8), np.arange(10)

    def read() -> None:
        opened = open_data("a.npz")
        opened.digest()
        opened.read(range(len(opened)))

    @cases(550)
    @given(damaged_npz(x, y))
    def each(damaged: bytes) -> None:
        (folder / "a.npz").write_bytes(damaged)
        check(folder, read)

    np.savez(folder / "a.npz", x=x, y=y)
    read()
    each()


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.csv", "a.parquet"])
def test_damaged_arrays_and_tables(name: str, folder: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32), np.arange(10)
    table = pa.table({f"f{i}": x[:, i] for i in range(4)} | {"label": y, "name": [f"row {i}" for i in y]})
    np.save(folder / "a.npy", x)
    np.save(folder / "y.npy", y)
    save_file({"x": x, "y": y}, folder / "a.safetensors")
    pa.csv.write_csv(table, folder / "a.csv")
    pa.parquet.write_table(table, folder / "a.parquet")
    options: dict[str, Any] = {"labels": "y.npy"} if name == "a.npy" else {}

    def read() -> None:
        opened = open_data(name, raw=True, **options)
        opened.digest()
        opened.read(range(len(opened)))

    @cases(75)
    @given(damaged_bytes((folder / name).read_bytes()))
    def each(damaged: bytes) -> None:
        (folder / name).write_bytes(damaged)
        check(folder, read)

    read()
    each()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


@pytest.mark.parametrize(("source", "number"), [(None, 350), ("tabular-20", 50), ("resized-21", 50)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_damaged_onnx(folder: Path, source: str | None, number: int) -> None:
    """Files of the legacy exporter, and of the current one, whose opset is converted."""
    file = folder / "m.onnx"
    if source is None:
        torch.onnx.export(mlp(), (torch.rand(2, 3, 2, 2),), file, opset_version=17, dynamo=False)
    else:
        shutil.copy(Path(__file__).parent.parent / f"data/onnx/{source}.onnx", file)

    @cases(number)
    @given(damaged_graph(file.read_bytes(), onnx))
    def each(damaged: bytes) -> None:
        file.write_bytes(damaged)
        check(folder, lambda: open_model("m.onnx"))

    open_model("m.onnx")
    each()


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "not trusted"])
def test_damaged_programs(trusted: bool, folder: Path) -> None:
    """Programs are damaged sound ones where they are trusted, and ones that run code where they are not."""
    program = torch.export.export(mlp(), (torch.rand(2, 3, 2, 2),))
    torch.export.save(program, folder / "m.pt2")
    if not trusted:
        torch.save(Malicious(folder / "executed"), folder / "m.pt2")

    @cases(50)
    @given(damaged_bytes((folder / "m.pt2").read_bytes()))
    def each(damaged: bytes) -> None:
        (folder / "m.pt2").write_bytes(damaged)
        check(folder, lambda: open_model("m.pt2", trust_pickle=trusted))

    each()
