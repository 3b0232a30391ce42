"""The bundled networks and their weights."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from marginattack.errors import InputError, choose
from marginattack.sources.preprocess import NORMALIZATIONS
from marginattack.sources.weights import load_weights


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
    """A bundled network: its constructor, its description, and the SHA-256 digest of its weights."""

    build: Callable[[], nn.Module]
    about: str
    sha256: str


ZOO = {
    "mnist-cnn": Network(
        MnistCNN, "the paper's MNIST network, 99.5 % accurate",
        "ebcbf5a58d0b0b39be5998d50cecf7bc278562cdd43e689793d40f1d762e61a4",
    ),
    "mnist-cnn-adv": Network(
        MnistCNN, "the same, adversarially trained (l∞ 0.3), 99.3 % accurate",
        "781b556d8af900be17cc3d6120c751102c085caded241b7b1836863d8e394aba",
    ),
    "cifar10-resnet32": Network(
        ResNet32, "ResNet32 on CIFAR-10, 92.9 % accurate",
        "33aeec3cc67ccfd64a2f9bc9e084c71cb7efd373c30d7fd68dd74c9d27f56499",
    ),
    "cifar10-resnet32-adv": Network(
        ResNet32, "the same, adversarially trained (l∞ 8/255), 77.8 % accurate",
        "496d75b4b26ab694fef1afdeaf250547b1f860ff464ec04ed81cfea2fec81d77",
    ),
}  # fmt: skip


def zoo(name: str) -> nn.Module:
    """Build a bundled network with its trained weights, in eval mode and float32.

    A clone, and what is installed from it, has all weights. A release has those of the CIFAR-10 networks; the others
    (6.5 MB each) are downloaded once, or read from the folder that the environment variable ``MARGINATTACK_ZOO`` names.

    Args:
        name: A key of ``ZOO``; ``marginattack list models`` prints them.

    Returns:
        A network that takes pixels in [0, 1] and returns logits.

    Raises:
        InputError: There is no network with this name, or its weights are damaged or cannot be downloaded.

    Example:
        >>> model = zoo("mnist-cnn")
    """
    if name not in ZOO:
        raise InputError(f"no zoo model named {name!r}: {choose(name, ZOO)}")
    model = ZOO[name].build()
    model.load_state_dict(load_weights(name, ZOO[name].sha256))
    return model.eval()
