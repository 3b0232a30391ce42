"""--model: each form with a real file gives the right logits, gradients and digests, and clear errors."""

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_stub
from model_helpers import assert_refused, assert_same_model
from torch import Tensor, nn

from marginattack.core.classifier import Classifier
from marginattack.errors import InputError, MissingDependencyError
from marginattack.execution.session import open_session
from marginattack.sources.models import FORMS, open_model
from marginattack.sources.preprocess import NORMALIZATIONS

legacy_exporter = pytest.mark.filterwarnings(
    "ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning",
    "ignore:The feature will be removed:DeprecationWarning",
)


class Small(nn.Module):
    """A convolution, a normalisation with buffers, a pooling and a linear layer."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(16, 5)
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.conv(images)).relu()
        logits: Tensor = self.last(self.drop(nn.functional.adaptive_avg_pool2d(features, 2).flatten(1)))
        return logits


class Counted(Small):
    """The same with the batch size in a shape: recorded for one batch size, it runs for no other."""

    def forward(self, images: Tensor) -> Tensor:
        n = images.shape[0]
        features = self.norm(self.conv(images)).relu()
        logits: Tensor = self.last(nn.functional.adaptive_avg_pool2d(features, 2).reshape(n, 16))
        return logits


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    torchvision_stub.install()


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    model = Small()
    model(torch.rand(16, 3, 8, 8))  # sets the running statistics
    return model.eval()


@pytest.fixture(scope="module")
def counted(small: nn.Module) -> nn.Module:
    model = Counted()
    model.load_state_dict(small.state_dict())
    return model.eval()


def export(model: nn.Module, path: Path, batch: int = 4, dynamic: Any = None, channels: int = 3) -> str:
    program = torch.export.export(model, (torch.rand(batch, channels, 8, 8),), dynamic_shapes=dynamic)
    torch.export.save(program, path)
    return str(path)


def test_zoo(network: nn.Module) -> None:
    opened = assert_same_model("zoo:mnist-cnn", network, shape=(1, 28, 28))
    assert opened.name == "zoo:mnist-cnn"
    assert opened.bare is opened.module
    assert opened.preprocessing == {"mean": None, "std": None, "resize": None, "crop": None, "from": "none"}
    assert (opened.image_size, opened.classes, opened.was_training) == (None, None, False)
    assert_refused("no zoo model named 'vgg': choose one of mnist-cnn", "zoo:vgg")


# Preprocessing ------------------------------------------------------------------------------------------------------


def test_preprocessing_is_part_of_the_module(small: nn.Module, tmp_path: Path) -> None:
    source = export(small, tmp_path / "m.pt2", dynamic=({0: torch.export.Dim("n")},))
    opened = open_model(source, trust_pickle=True, normalize="imagenet", resize=10, crop=8)
    mean, std = (torch.tensor(s).reshape(1, 3, 1, 1) for s in NORMALIZATIONS["imagenet"])
    images = torch.rand(3, 3, 20, 30, requires_grad=True)
    fitted = nn.functional.interpolate(images, (10, 15), mode="bilinear", antialias=True)[:, :, 1:9, 4:12]
    logits = opened.module(images)
    assert torch.allclose(logits, small((fitted - mean) / std), atol=1e-5)
    assert torch.allclose(opened.bare(images[:, :, :8, :8]), small(images[:, :, :8, :8]), atol=1e-5)
    logits.sum().backward()
    assert images.grad is not None
    assert images.grad.any()
    stated = {key: opened.preprocessing[key] for key in ("mean", "resize", "crop", "from")}
    assert stated == {"mean": [0.485, 0.456, 0.406], "resize": 10, "crop": 8, "from": "--normalize imagenet"}
    assert_refused("--normalize is 'imagenet1k'", source, normalize="imagenet1k")
    assert_refused("--resize is 0", source, resize=0, trust_pickle=True)


# torch.export -------------------------------------------------------------------------------------------------------


def test_pt2_with_a_dynamic_batch(small: nn.Module, tmp_path: Path) -> None:
    opened = assert_same_model(
        export(small, tmp_path / "m.pt2", dynamic=({0: torch.export.Dim("n")},)), small, trust_pickle=True
    )
    assert opened.preprocessing["batch recorded"] == "any"
    assert not opened.was_training


@pytest.mark.parametrize("batch", [1, 4])
def test_pt2_with_a_fixed_batch(small: nn.Module, counted: nn.Module, tmp_path: Path, batch: int) -> None:
    opened = assert_same_model(export(small, tmp_path / "free.pt2", batch), small, trust_pickle=True)
    assert (opened.preprocessing["batch recorded"], opened.preprocessing["batch used"]) == (str(batch), "any")
    opened = assert_same_model(export(counted, tmp_path / "counted.pt2", batch), small, trust_pickle=True)
    assert (opened.preprocessing["batch recorded"], opened.preprocessing["batch used"]) == (str(batch), str(batch))


def test_pt2_with_a_range_of_batches(small: nn.Module, tmp_path: Path) -> None:
    assert_same_model(
        export(small, tmp_path / "m.pt2", dynamic=({0: torch.export.Dim("n", min=2, max=4)},)), small, trust_pickle=True
    )


def test_pt2_works_in_a_classifier_and_switches_modes(small: nn.Module, tmp_path: Path) -> None:
    opened = open_model(export(small, tmp_path / "m.pt2"), trust_pickle=True, normalize="0.5/0.5")
    with open_session(Classifier(opened.module)) as session:
        assert session.validate(torch.rand(9, 3, 8, 8), torch.zeros(9, dtype=torch.int64)).classes == 5
    opened.module.train()
    opened.module.eval()


def test_pt2_refuses_images_of_another_size(small: nn.Module, tmp_path: Path) -> None:
    opened = open_model(export(small, tmp_path / "m.pt2"), trust_pickle=True)
    with pytest.raises(InputError, match="takes inputs of 3×8×8, but these are 3×9×8: pass --resize"):
        opened.module(torch.rand(2, 3, 9, 8))


def test_pt2_recorded_in_train_mode_is_detected(small: nn.Module, tmp_path: Path) -> None:
    assert open_model(export(copy.deepcopy(small).train(), tmp_path / "m.pt2"), trust_pickle=True).was_training


class Masked(nn.Module):
    """No gradient reaches the input."""

    def forward(self, images: Tensor) -> Tensor:
        return images.detach().flatten(1)[:, :4]


class TwoInputs(nn.Module):
    """Images and a scale."""

    def forward(self, images: Tensor, scale: Tensor) -> Tensor:
        return (images * scale).flatten(1)


class ReturnsDict(nn.Module):
    """Logits in a dict, as some libraries return them."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"logits": images.flatten(1)[:, :4], "hidden": images}


def test_pt2_that_cannot_be_attacked(tmp_path: Path) -> None:
    assert_refused("m.pt2 passes no gradient to its input", export(Masked(), tmp_path / "m.pt2"), trust_pickle=True)
    program = torch.export.export(TwoInputs(), (torch.rand(2, 3, 8, 8), torch.ones(1)))
    torch.export.save(program, tmp_path / "two.pt2")
    assert_refused("takes 2 inputs", tmp_path / "two.pt2", trust_pickle=True)
    program = torch.export.export(nn.Embedding(3, 2), (torch.zeros(2, 3, dtype=torch.int64),))
    torch.export.save(program, tmp_path / "words.pt2")
    assert_refused("takes torch.int64, shape .2, 3.", tmp_path / "words.pt2", trust_pickle=True)


def test_pt2_that_returns_a_dict(tmp_path: Path) -> None:
    opened = open_model(export(ReturnsDict(), tmp_path / "m.pt2"), trust_pickle=True)
    images = torch.rand(3, 3, 8, 8)
    assert opened.module(images).equal(images.flatten(1)[:, :4])


# ONNX ---------------------------------------------------------------------------------------------------------------


def to_onnx(model: nn.Module, path: Path, batch: int = 2, dynamic: bool = False, **settings: Any) -> str:
    axes = {"x": {0: "n"}, "y": {0: "n"}} if dynamic else None
    settings = {"opset_version": 17, "dynamo": False, "input_names": ["x"], "output_names": ["y"], **settings}
    torch.onnx.export(model, (torch.rand(batch, 3, 8, 8),), str(path), dynamic_axes=axes, **settings)
    return str(path)


@legacy_exporter
def test_onnx_with_a_dynamic_or_fixed_batch(small: nn.Module, counted: nn.Module, tmp_path: Path) -> None:
    opened = assert_same_model(to_onnx(small, tmp_path / "any.onnx", dynamic=True), small)
    assert opened.preprocessing["opset"] == 17
    assert not opened.was_training
    opened = assert_same_model(to_onnx(small, tmp_path / "one.onnx", 1), small)
    assert (opened.preprocessing["batch recorded"], opened.preprocessing["batch used"]) == ("1", "any")
    opened = assert_same_model(to_onnx(counted, tmp_path / "two.onnx", 2), small)
    assert (opened.preprocessing["batch recorded"], opened.preprocessing["batch used"]) == ("2", "2")


@legacy_exporter
def test_onnx_whose_conversion_differs_is_refused(
    small: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = to_onnx(small, tmp_path / "m.onnx")
    onnx2torch = importlib.import_module("onnx2torch")
    other = copy.deepcopy(small)
    with torch.no_grad():
        other.last.bias += 0.25  # type: ignore[union-attr,operator]
    monkeypatch.setattr(onnx2torch, "convert", lambda proto: other)
    assert_refused("of the converted model and of onnxruntime differ by up to 0.25 on a random batch", source)


def test_onnx_with_an_unknown_operator(tmp_path: Path) -> None:
    onnx = importlib.import_module("onnx")
    h = onnx.helper
    nodes = [h.make_node("Det", ["x"], ["y"])]
    ends = [h.make_tensor_value_info("x", 1, [2, 3, 4, 4]), h.make_tensor_value_info("y", 1, [2, 3])]
    graph = h.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    line = assert_refused(
        "onnx2torch cannot convert .*: unknown operator Det; neither opset 13 nor", f"{tmp_path}/m.onnx"
    )
    assert "a conversion to opset 17" in line


def test_onnx_file_without_a_graph(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a graph")
    assert_refused("m.onnx is not an ONNX model", f"{tmp_path}/m.onnx")


# Refusals -----------------------------------------------------------------------------------------------------------


def test_unknown_sources_list_the_forms(tmp_path: Path) -> None:
    for source in ("resnet18", "", "model.h5", "zoo/mnist-cnn", "a b:c"):
        line = assert_refused("is in no known form", source)
        assert all(form in line for form in FORMS)
    assert_refused("did you mean zoo:mnist-cnn", "mnist-cnn")
    assert_refused("has no name after the colon: write timm:NAME", "timm:")
    for suffix in (".pt2", ".onnx", ".pt", ".pth", ".safetensors"):
        assert_refused(f"no file .*absent{suffix}", f"{tmp_path}/absent{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        assert_refused("is a folder", f"{tmp_path}/folder{suffix}")


def test_unknown_device() -> None:
    assert_refused("device 'abacus' cannot be used", "zoo:mnist-cnn", device="abacus")


@pytest.mark.parametrize(
    ("source", "module", "line"),
    [
        (
            "torchvision:resnet18",
            "torchvision",
            "torchvision is not installed: pip install 'marginattack[torchvision]'",
        ),
        ("timm:resnet18", "timm", "timm is not installed: pip install 'marginattack[timm]'"),
        ("hf:google/vit", "transformers", "transformers is not installed: pip install 'marginattack[hf]'"),
        ("{}/m.onnx", "onnx", "onnx is not installed: pip install 'marginattack[onnx]'"),
        ("{}/m.onnx", "onnx2torch", "onnx2torch is not installed: pip install 'marginattack[onnx]'"),
        (
            "robustbench:Carmon2019Unlabeled",
            "pkg_resources",
            "robustbench needs pkg_resources, which is not installed: pip install 'setuptools<81'",
        ),
        ("{}/m.onnx", "onnxruntime", "onnxruntime is not installed: pip install 'marginattack[onnx]'"),
    ],
)
def test_missing_extras(source: str, module: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    original: Callable[..., Any] = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] in (module, "robustbench"):
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingDependencyError) as caught:
        open_model(source.format(tmp_path), trust_pickle=True)
    assert str(caught.value) == line
