"""Models by name: torchvision, timm and transformers from local files, with the preprocessing in their metadata."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_stub
from model_helpers import assert_refused, linear, save_weights
from torch import nn

from marginattack.sources.images import ImageSize
from marginattack.sources.model_hubs import hf_image_size, hf_statistics
from marginattack.sources.models import open_model
from marginattack.sources.preprocess import NORMALIZATIONS


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    torchvision_stub.install()


def test_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = importlib.import_module("torchvision.models")
    torch.manual_seed(0)
    model = models.resnet18(weights=None).eval()
    images = torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(s).reshape(1, 3, 1, 1) for s in NORMALIZATIONS["imagenet"])
    expected = model((images - mean) / std)
    source = f"torchvision:resnet18@{save_weights(model, tmp_path / 'w.safetensors')}"
    opened = open_model(source)
    assert torch.allclose(opened.module(images), expected, atol=1e-4)
    assert torch.allclose(open_model(source, normalize="none").module(images), model(images), atol=1e-4)
    assert opened.image_size == ImageSize(256, 224)
    assert open_model(source, crop=32).image_size is None
    assert opened.classes is not None
    assert opened.classes[:2] == ["tench", "goldfish"]
    assert opened.preprocessing["from"] == "torchvision metadata"
    assert not opened.was_training

    enum = models.ResNet18_Weights
    monkeypatch.setattr(enum, "get_state_dict", lambda self, *args, **kwargs: model.state_dict())  # as if downloaded
    assert torch.allclose(open_model("torchvision:resnet18").module(images), expected, atol=1e-4)

    def offline(self: object, *args: object, **kwargs: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(enum, "get_state_dict", offline)
    assert_refused("cannot get the weights of torchvision:resnet18: OSError: no route to host", "torchvision:resnet18")
    assert_refused("no classifier named 'resnet19': did you mean resnet1", "torchvision:resnet19")
    assert_refused("no classifier named 'fcn_resnet50'", "torchvision:fcn_resnet50")
    assert_refused("no file /nowhere", "torchvision:resnet18@/nowhere")
    other = save_weights(linear(), tmp_path / "other.safetensors")
    assert_refused("other.safetensors do not fit ResNet", f"torchvision:resnet18@{other}")


def test_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = importlib.import_module("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False).eval()
    config = model.pretrained_cfg
    images = torch.rand(2, 3, 160, 160)
    mean, std = (torch.tensor(config[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    opened = open_model(f"timm:test_resnet@{save_weights(model, tmp_path / 'w.safetensors')}")
    assert torch.allclose(opened.module(images), model((images - mean) / std), atol=1e-4)
    crop = config["input_size"][-1]
    assert opened.image_size == ImageSize(int(crop / config["crop_pct"]), crop)
    assert opened.preprocessing["from"] == "timm metadata"
    torch.save(model.state_dict(), tmp_path / "w.pth")
    assert open_model(f"timm:test_resnet@{tmp_path}/w.pth").module(images).equal(opened.module(images))
    assert_refused("timm has no model named 'test_resnat': did you mean test_resnet", "timm:test_resnat")

    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(timm, "create_model", offline)
    assert_refused(
        "cannot get timm:test_resnet: OSError: no route to host; .*timm:test_resnet@FILE", "timm:test_resnet"
    )


@pytest.fixture
def vit(tmp_path: Path) -> tuple[Path, nn.Module]:
    """A tiny vision transformer, saved by its library."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    labels = {0: "cat", 1: "dog", 2: "bird"}
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=8, id2label=labels, **sizes)
    ).eval()
    model.save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "do_normalize": true, "image_mean": [0.5, 0.4, 0.3],'
        ' "image_std": [0.2, 0.3, 0.4], "size": {"height": 16, "width": 16}}'
    )
    return tmp_path / "vit", model


def test_hf_from_a_folder(vit: tuple[Path, nn.Module]) -> None:
    folder, model = vit
    images = torch.rand(2, 3, 16, 16, requires_grad=True)
    opened = open_model(f"hf:{folder}")
    mean, std = (torch.tensor(s).reshape(1, 3, 1, 1) for s in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    logits = opened.module(images)
    assert torch.allclose(logits, model((images - mean) / std).logits, atol=1e-5)
    logits[:, 0].sum().backward()
    assert images.grad is not None
    assert images.grad.any()
    assert opened.classes == ["cat", "dog", "bird"]
    assert opened.image_size == ImageSize(16, 16)
    assert opened.preprocessing["from"] == "hf image processor"
    assert not opened.was_training
    (folder / "preprocessor_config.json").unlink()
    assert open_model(f"hf:{folder}").preprocessing["mean"] is None


def test_hf_refuses_pickles_and_code(vit: tuple[Path, nn.Module], tmp_path: Path) -> None:
    folder, model = vit
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert_refused("cannot load hf:.*safetensors", f"hf:{folder}")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    (folder / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForImageClassification": "own.M"}}'
    )
    assert_refused("cannot load hf:.*without custom code", f"hf:{folder}")
    assert not (tmp_path / "marker").exists()
    assert_refused("no folder /nowhere/at/all", "hf:/nowhere/at/all")


PROCESSORS: list[tuple[dict[str, Any], str]] = [
    ({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}, "ViTImageProcessorPil"),
    ({"do_normalize": False}, "ViTImageProcessorPil"),
    (
        {"do_rescale": False, "do_normalize": True, "image_mean": [127.5] * 3, "image_std": [64.0] * 3},
        "ViTImageProcessorPil",
    ),
    ({"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [0.5] * 3}, "ViTImageProcessorPil"),
    ({"image_mean": [0.5] * 3, "image_std": [0.2] * 3}, "EfficientNetImageProcessorPil"),
    ({"image_mean": [0.5] * 3, "image_std": [0.2] * 3, "include_top": False}, "EfficientNetImageProcessorPil"),
    ({"image_mean": [0.5] * 3, "image_std": [0.2] * 3, "rescale_offset": True}, "EfficientNetImageProcessorPil"),
]


@pytest.mark.parametrize(("settings", "kind"), PROCESSORS)
def test_hf_statistics_match_the_processor(settings: dict[str, Any], kind: str) -> None:
    processor = getattr(importlib.import_module("transformers"), kind)(
        **settings, do_resize=False, do_center_crop=False
    )
    bytes_ = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    expected = torch.as_tensor(np.asarray(processor(bytes_)["pixel_values"][0]), dtype=torch.float32)
    images = torch.from_numpy(bytes_).permute(2, 0, 1).float() / 255
    statistics = hf_statistics({**settings, "image_processor_type": kind})
    if statistics is not None:
        mean, std = (torch.tensor(s).reshape(-1, 1, 1) for s in statistics)
        images = (images - mean) / std
    assert torch.allclose(images, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"size": 224}, ImageSize(224, 224)),
        ({"size": {"height": 384, "width": 384}}, ImageSize(384, 384)),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            ImageSize(256, 224),
        ),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, ImageSize(256, 224)),
        ({"size": {"shortest_edge": 256}}, ImageSize(256, None)),
    ],
)
def test_hf_image_size(settings: dict[str, Any], expected: ImageSize | None) -> None:
    assert hf_image_size(settings) == expected
