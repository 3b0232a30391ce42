"""The bundled networks and their weights."""

from collections.abc import Callable
from importlib.resources import as_file, files
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from marginattack.errors import InputError, choose
from marginattack.sources.preprocess import NORMALIZATIONS


class MnistCNN(nn.Module):
    """The paper's MNIST network: 5×5 convolutions of 32 and 64 filters, each pooled by 2, then 1,024 hidden units.

    It takes pixels in [0, 1], shape (n, 1, 28, 28), and returns ten logits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(7 * 7 * 64, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut without parameters (He et al. 2016, option A)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=outputs // inputs, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if out.shape != x.shape:  # half the size, twice the channels: every other pixel, and zeros for the new channels
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, out.shape[1] - x.shape[1]))
        return torch.relu(out + x)


class ResNet32(nn.Module):
    """ResNet32 for CIFAR-10 (He et al. 2016, section 4.2): five blocks each of 16, 32 and 64 channels.

    It takes pixels in [0, 1], shape (n, 3, 32, 32), normalises them itself, and returns ten logits.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, values in zip(("mean", "std"), NORMALIZATIONS["cifar10"], strict=True):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [16] * 6 + [32] * 5 + [64] * 5
        self.blocks = nn.Sequential(*(BasicBlock(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(64, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        return self.logits((images - self.mean) / self.std)

    def logits(self, normalised: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.bn1(self.conv1(normalised))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class Network(NamedTuple):
    """A bundled network: its constructor and its description."""

    build: Callable[[], nn.Module]
    about: str


ZOO = {
    "mnist-cnn": Network(MnistCNN, "the paper's MNIST network, 99.5 % accurate"),
    "mnist-cnn-adv": Network(MnistCNN, "the same, adversarially trained (l∞ 0.3), 99.3 % accurate"),
    "cifar10-resnet32": Network(ResNet32, "ResNet32 on CIFAR-10, 92.9 % accurate"),
    "cifar10-resnet32-adv": Network(ResNet32, "the same, adversarially trained (l∞ 8/255), 77.8 % accurate"),
}


def zoo(name: str) -> nn.Module:
    """Build a bundled network with its trained weights, in eval mode and float32.

    Args:
        name: A key of ``ZOO``; ``marginattack list models`` prints them.

    Returns:
        A network that takes pixels in [0, 1] and returns logits.

    Raises:
        InputError: There is no network with this name.

    Example:
        >>> model = zoo("mnist-cnn")
    """
    if name not in ZOO:
        raise InputError(f"no zoo model named {name!r}: {choose(name, ZOO)}")
    from safetensors.torch import load_file

    model = ZOO[name].build()
    with as_file(files(__package__) / "zoo" / f"{name}.safetensors") as path:
        weights = load_file(path)
    model.load_state_dict({key: value.to(torch.float32) for key, value in weights.items()})
    return model.eval()
