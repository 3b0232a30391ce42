"""Datasets of torchvision and Hugging Face, from local files."""

import importlib
import pickle
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_stub
from data_helpers import Malicious, error_of, pixels, png, read_all
from numpy.typing import NDArray
from PIL import Image

from marginattack.sources.data import ImageSize, open_data
from marginattack.sources.data_folder import ImageFiles
from marginattack.sources.data_torchvision import TorchvisionItems


@pytest.fixture(scope="module")
def torchvision() -> Any:
    """On some machines its operators are compiled for another torch; their names are enough here."""
    torchvision_stub.install()
    return importlib.import_module("torchvision")


def idx(values: NDArray[Any]) -> bytes:
    """The format of the MNIST files."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> tuple[Path, dict[str, NDArray[Any]]]:
    """A folder as torchvision's MNIST writes it."""
    raw = tmp_path / "root" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    arrays = {"t10k": pixels(5, 28, 28), "train": pixels(6, 28, 28)}
    for part, values in arrays.items():
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(values))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(len(values), dtype=np.uint8)))
    return tmp_path / "root", arrays


@pytest.mark.usefixtures("torchvision")
def test_torchvision_mnist(mnist: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    root, arrays = mnist
    data = open_data(f"torchvision:MNIST@{root}")
    x, y = read_all(data)
    assert x.equal(torch.from_numpy(arrays["t10k"]).unsqueeze(1).float() / 255)
    assert y.tolist() == list(range(5))
    assert data.classes is not None
    assert data.classes[3] == "3 - three"
    monkeypatch.setenv("TORCHVISION_ROOT", str(root))
    assert open_data("torchvision:MNIST", split="test").digest() == data.digest()
    train = open_data("torchvision:MNIST", split="train")
    assert train.digest() != data.digest()
    assert len(train) == 6
    fitted = open_data("torchvision:MNIST", image_size=ImageSize(32, 30))
    assert read_all(fitted)[0].shape == (5, 1, 30, 30)
    assert "no split 'val': choose train or test" in error_of("torchvision:MNIST", split="val")


def test_torchvision_cifar(torchvision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR's files are pickles, which torchvision opens only if their checksum is the official one."""
    import hashlib

    folder_ = tmp_path / "cifar-10-batches-py"
    folder_.mkdir()
    values = pixels(4, 3, 32, 32)
    content = {"test_batch": {"data": values.reshape(4, -1), "labels": [3, 1, 2, 0]},
               "batches.meta": {"label_names": list("abcdefghij")}}  # fmt: skip
    sums = {}
    for name, value in content.items():
        (folder_ / name).write_bytes(pickle.dumps(value))
        sums[name] = hashlib.md5((folder_ / name).read_bytes()).hexdigest()
    assert "download it with torchvision.datasets.CIFAR10(" in error_of(f"torchvision:CIFAR10@{tmp_path}")
    kind = torchvision.datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", [])
    monkeypatch.setattr(kind, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": sums["batches.meta"]})
    data = open_data(f"torchvision:CIFAR10@{tmp_path}")
    x, y = read_all(data)
    assert x.equal(torch.from_numpy(values).float() / 255)
    assert y.tolist() == [3, 1, 2, 0]
    assert data.classes == list("abcdefghij")
    (folder_ / "test_batch").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    assert "corrupted" in error_of(f"torchvision:CIFAR10@{tmp_path}")
    assert not (tmp_path / "executed").exists()


@pytest.mark.usefixtures("torchvision")
def test_torchvision_dataset_of_files(tmp_path: Path) -> None:
    """Imagenette has splits train and val, and files of different sizes."""
    for split in ("train", "val"):
        for number, wnid in enumerate(["n01440764", "n02102040", "n02979186", "n03000684", "n03028079",
                                       "n03394916", "n03417042", "n03425413", "n03445777", "n03888257"]):  # fmt: skip
            png(tmp_path / "imagenette2" / split / wnid / "a.JPEG", pixels(20 + number, 30, 3))
    assert "differ in size" in error_of(f"torchvision:Imagenette@{tmp_path}")
    data = open_data(f"torchvision:Imagenette@{tmp_path}", image_size=ImageSize(18, 16))
    assert isinstance(data, ImageFiles)
    _, y = read_all(data)
    assert y.tolist() == list(range(10))
    assert data.classes is not None
    assert data.classes[0].startswith("tench")
    assert "--split" in error_of(f"torchvision:Imagenette@{tmp_path}", split="test")


@pytest.mark.usefixtures("torchvision")
def test_torchvision_dataset_without_files() -> None:
    data = open_data("torchvision:FakeData", image_size=ImageSize(20, 16))
    assert isinstance(data, TorchvisionItems)
    x, y = data.read([0, 999])
    assert x.shape == (2, 3, 16, 16)
    assert y.dtype == torch.int64
    assert "omit --split test" in error_of("torchvision:FakeData", split="test")


@pytest.mark.usefixtures("torchvision")
def test_torchvision_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = error_of("torchvision:CIFAR10")
    assert "no usable data in 'data'" in line
    assert "download it with torchvision.datasets.CIFAR10('data', download=True)" in line
    assert "torchvision has no dataset 'CIFER10': did you mean CIFAR10" in error_of("torchvision:CIFER10")
    assert "no usable data" in error_of("torchvision:ImageNet")
    assert "its index is a pickle" in error_of("torchvision:LSUN")
    assert "choose one with --split" in error_of("torchvision:EMNIST")
    assert list(tmp_path.iterdir()) == []  # nothing was downloaded or created


def test_resize_and_crop_match_torchvision(torchvision: Any, tmp_path: Path) -> None:
    transforms = importlib.import_module("torchvision.transforms")
    for height, width, size in [(37, 53, (20, 17)), (53, 37, (64, 60)), (21, 20, (None, 17)), (20, 21, (20, 20))]:
        png(tmp_path / "ant" / "a.png", pixels(height, width, 3))
        fit = transforms.Compose(
            ([transforms.Resize(size[0])] if size[0] else []) + [transforms.CenterCrop(size[1]), transforms.ToTensor()]
        )
        with Image.open(tmp_path / "ant" / "a.png") as image:
            expected = fit(image)
        x, _ = open_data(str(tmp_path), image_size=ImageSize(*size)).read([0])
        assert x[0].equal(expected)


# Hugging Face


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The library, offline, with its cache in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets: Any = importlib.import_module("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(importlib.import_module("huggingface_hub").constants, "HF_HUB_OFFLINE", True)
        datasets.disable_progress_bars()
        yield datasets


def table(datasets: Any, tmp_path: Path, labels: list[int], **more: Any) -> tuple[Any, NDArray[Any]]:
    """A dataset of grey images with one column of classes."""
    values = pixels(len(labels), 9, 8)
    files = [str(png(tmp_path / "files" / f"{row}.png", value)) for row, value in enumerate(values)]
    features = {"picture": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat"])}
    columns = {"picture": files, "label": labels} | more
    features |= {name: datasets.ClassLabel(names=["ant", "bee", "cat"]) for name in more}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features)), values


def test_hf_parquet_file_and_saved_folder(datasets: Any, tmp_path: Path) -> None:
    made, values = table(datasets, tmp_path, [2, 0, 1, 1])
    made.to_parquet(tmp_path / "a.parquet")
    made.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=made.select([0]), validation=made).save_to_disk(tmp_path / "splits")
    digests = set()
    for name in ("a.parquet", "saved", "splits"):
        data = open_data(f"hf:{tmp_path / name}")
        x, y = read_all(data)
        assert x.equal(torch.from_numpy(values).unsqueeze(1).float() / 255)
        assert y.tolist() == [2, 0, 1, 1]
        assert data.classes == ["ant", "bee", "cat"]
        digests.add(data.digest())
    assert len(digests) == 1  # wherever it is stored
    assert len(open_data(f"hf:{tmp_path / 'splits'}", split="train")) == 1
    assert "no split 'test': choose one with --split train|validation" in error_of(
        f"hf:{tmp_path / 'splits'}", split="test"
    )
    assert open_data(f"hf:{tmp_path / 'a.parquet'}", image_size=ImageSize(7, 6)).shape == (1, 6, 6)


def test_hf_parquet_written_without_datasets(datasets: Any, tmp_path: Path) -> None:
    """Plain structs and integers."""
    import pyarrow as pa
    from pyarrow import parquet

    file = png(tmp_path / "a.png", pixels(9, 8, 3))
    columns = {"image": [{"bytes": file.read_bytes(), "path": "a.png"}] * 3, "label": [5, 0, 7]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = open_data(f"hf:{tmp_path / 'a.parquet'}")
    x, y = read_all(data)
    assert y.tolist() == [5, 0, 7]
    assert x[0].equal(open_data(str(_class(tmp_path, file))).read([0])[0][0])
    assert data.classes is None


def _class(tmp_path: Path, file: Path) -> Path:
    (tmp_path / "one" / "ant").mkdir(parents=True)
    file.rename(tmp_path / "one" / "ant" / "a.png")
    return tmp_path / "one"


def test_hf_image_folder(datasets: Any, tmp_path: Path) -> None:
    values = [pixels(9, 8, 3) for _ in range(4)]
    for split, kind, value in zip(["train", "train", "test", "test"], ["ant", "bee"] * 2, values, strict=True):
        png(tmp_path / "data" / split / kind / "a.png", value)
    data = open_data(f"hf:{tmp_path / 'data'}")
    x, y = read_all(data)
    assert x.equal(torch.from_numpy(np.stack(values[2:])).permute(0, 3, 1, 2).float() / 255)
    assert y.tolist() == [0, 1]
    assert data.classes == ["ant", "bee"]


def test_hf_refusals(datasets: Any, tmp_path: Path) -> None:
    made, _ = table(datasets, tmp_path, [2, 0, 1, 1], coarse=[0, 0, 1, 1])
    made.to_parquet(tmp_path / "a.parquet")
    assert "2 of the columns picture, label, coarse hold classes: choose one with --labels" in error_of(
        f"hf:{tmp_path / 'a.parquet'}"
    )
    assert open_data(f"hf:{tmp_path / 'a.parquet'}", labels="coarse").read([3])[1].tolist() == [1]
    assert "no label column 'fine'" in error_of(f"hf:{tmp_path / 'a.parquet'}", labels="fine")
    made.remove_columns("picture").to_parquet(tmp_path / "b.parquet")
    assert "needs one column of images, but 0 of label, coarse hold images" in error_of(f"hf:{tmp_path / 'b.parquet'}")
    hidden, _ = table(datasets, tmp_path, [0, -1])
    hidden.to_parquet(tmp_path / "c.parquet")
    line = error_of(f"hf:{tmp_path / 'c.parquet'}")
    assert "the label of row 1 is -1" in line
    assert "choose another --split than train" in line
    (tmp_path / "d.parquet").write_bytes(b"PAR1 not")
    assert "datasets cannot open it" in error_of(f"hf:{tmp_path / 'd.parquet'}")
    assert "no such file or folder" in error_of("hf:./none")


def test_hf_broken_images_and_foreign_paths(datasets: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    paths = [None, "http://127.0.0.1:9/a.png", "/etc/hostname", ""]
    cells = [{"bytes": None if path else b"no image", "path": path} for path in paths]
    parquet.write_table(pa.table({"image": [*cells, None], "label": [0] * 5}), tmp_path / "a.parquet")
    line = error_of(f"hf:{tmp_path / 'a.parquet'}")
    assert "5 of 5 images cannot be used, first 'row 0' (not an image that pillow can read)" in line


def test_hf_scripts_are_not_run(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\n")
    assert "datasets cannot open it" in error_of(f"hf:{tmp_path / 'data'}")
    assert not (tmp_path / "executed").exists()
