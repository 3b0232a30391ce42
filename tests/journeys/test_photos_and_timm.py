"""Photos in a folder and a model of timm: names of files and of ImageNet's classes, in every output."""

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import terminal
import torch
import torchvision_stub
from PIL import Image
from safetensors.torch import save_file

import marginattack as ma
from marginattack.sources.data import samples

MODEL = "test_resnet"  # of timm: an ImageNet classifier that is small enough for tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG files of photos, weights, and labels that the model, evaluated as timm does, agrees with but for one."""
    torchvision_stub.install()
    timm: Any = importlib.import_module("timm")
    path = tmp_path_factory.mktemp("photos")
    torch.manual_seed(0)
    images, _ = samples("cifar10", 6)
    model = timm.create_model(MODEL, pretrained=False)
    for _ in range(30):  # sets the running statistics, so that its features tell photos apart
        model(torch.nn.functional.interpolate(images, 160))
    save_file(model.eval().state_dict(), path / "weights.safetensors")
    (path / "photos/holiday").mkdir(parents=True)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model.pretrained_cfg))
    rows = []
    for number, pixels in enumerate(images):
        name = f"holiday/IMG {number:03d}.jpg" if number % 2 else f"IMG_{number:03d}.jpg"
        photo = Image.fromarray(np.uint8(255 * pixels.permute(1, 2, 0).numpy()))
        photo.resize((200 + 10 * number, 190), 2).save(path / "photos" / name, quality=95)
        with torch.no_grad(), Image.open(path / "photos" / name) as stored:
            rows.append((name, int(model(transform(stored)[None]).argmax())))
    rows[3] = (rows[3][0], (rows[3][1] + 1) % 1000)
    with (path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "label"), *rows])
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    source = ["--model", f"timm:{MODEL}@weights.safetensors", "--data", "photos", "--labels", "labels.csv"]
    attack = ["--norm", "l2", "--budget", "40", "--attack", "deepfool", "--despite-findings"]
    out = terminal.run(folder, "measure", *source, *attack, "--out", "run")
    assert "83.3%" in out  # one label of six is wrong
    assert "smallest margins" in out
    assert ".jpg" in out
    return folder / "run"


def test_names_are_in_the_stored_results(folder: Path, run: Path) -> None:
    with (folder / "labels.csv").open() as file:
        labels = {row["file"]: int(row["label"]) for row in csv.DictReader(file)}
    table = terminal.read(run, "margins")
    assert dict(zip(table["name"].to_pylist(), table["label"].to_pylist(), strict=True)) == labels
    margins = ma.Margins.load(run)
    assert margins.names == tuple(sorted(labels))
    assert margins.classes is not None
    assert margins.classes[0] == "tench, Tinca tinca"
    assert str(folder) not in (run / "manifest.json").read_text()  # no absolute paths


def test_names_are_in_the_reports(folder: Path, run: Path) -> None:
    summary = json.loads(terminal.run(folder, "report", "run", "--json"))[0]["parts"][0]
    smallest = summary["smallest"][0]
    margins = ma.Margins.load(run)
    row = int(margins.distance.where(margins.distance > 0, torch.inf).argmin())
    assert margins.names is not None
    assert smallest["name"] == margins.names[row]
    terminal.run(folder, "report", "run", "-o", "report.html")
    page = (folder / "report.html").read_text()
    assert "holiday/IMG 003.jpg" in page  # the misclassified photo is listed for inspection
    assert "holiday%2FIMG%20003.jpg" in page or "holiday/IMG%20003.jpg" in page  # and in the CSV


def test_photos_of_different_sizes_without_a_model_that_says_how_to_resize(folder: Path) -> None:
    source = ["--model", "zoo:mnist-cnn", "--data", "photos", "--labels", "labels.csv"]
    line = terminal.refused(folder, "measure", *source, "--out", "none")
    assert "images differ in size" in line
    assert "--image-size 256/224" in line
