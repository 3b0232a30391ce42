"""ONNX files of torch's current exporter, as ``tests/data/onnx/export.py`` wrote them, against onnxruntime."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_stub
from model_helpers import assert_refused
from torch import Tensor

from marginattack.sources.models import Model, open_model

FILES = Path(__file__).parent.parent / "data/onnx"
LOGITS = sorted(file for file in FILES.glob("*.onnx") if "softmax" not in file.name)
SHAPES = {
    "convolution": (3, 8, 8), "transformer": (3, 8, 8), "resized": (3, 10, 10), "tabular": (6,), "audio": (1, 200),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    torchvision_stub.install()


def run_onnx(file: Path, images: Tensor) -> Tensor:
    """What onnxruntime makes of the file, in batches of its size."""
    session = importlib.import_module("onnxruntime").InferenceSession(str(file))
    (given,) = session.get_inputs()
    parts = images.split(given.shape[0] if isinstance(given.shape[0], int) else len(images))
    return torch.cat([torch.from_numpy(session.run(None, {given.name: part.numpy()})[0]) for part in parts])


def opset_of(file: Path) -> int:
    onnx: Any = importlib.import_module("onnx")
    return next(int(each.version) for each in onnx.load(file).opset_import if each.domain == "")


@pytest.mark.parametrize("file", LOGITS, ids=lambda file: file.stem)
def test_files_of_the_current_exporter(file: Path) -> None:
    kind, opset = file.stem.split("-")
    assert opset_of(file) == int(opset)
    opened = open_model(str(file))
    assert opened.preprocessing["opset"] == int(opset)
    images = torch.rand(4, *SHAPES[kind], generator=torch.Generator().manual_seed(1)).requires_grad_()
    logits = opened.module(images)
    assert torch.allclose(logits, run_onnx(file, images.detach()), atol=1e-5)
    logits[:, 0].sum().backward()
    assert images.grad is not None
    step = 1e-3 * torch.nn.functional.normalize(images.grad.flatten(1)).reshape(images.shape)
    change = (run_onnx(file, images.detach() + step) - run_onnx(file, images.detach() - step))[:, 0]
    assert torch.allclose(change, 2 * (step * images.grad).flatten(1).sum(1), rtol=0.1, atol=1e-5)


def test_a_last_softmax_is_stripped_on_request() -> None:
    file = FILES / "softmax-18.onnx"
    assert_refused("ends with Softmax, whose gradients vanish: pass --strip-softmax", file)
    opened: Model = open_model(str(file), strip_softmax=True)
    assert opened.preprocessing["softmax"] == "stripped"
    images = torch.rand(3, 3, 8, 8)
    logits = opened.module(images)
    assert torch.allclose(logits.softmax(1), run_onnx(file, images), atol=1e-5)
    assert not torch.allclose(logits.sum(1), torch.ones(3))
    source = FILES / "tabular-20.onnx"
    assert_refused("ends with Gemm, not with Softmax: omit --strip-softmax", source, strip_softmax=True)
    assert_refused("--strip-softmax applies to .onnx files, not to zoo:mnist-cnn", "zoo:mnist-cnn", strip_softmax=True)
