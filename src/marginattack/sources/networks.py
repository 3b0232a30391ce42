"""The zoo: the networks that are bundled, with their weights."""

from collections.abc import Callable
from importlib.resources import as_file, files

import torch
from torch import Tensor, nn


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


ZOO: dict[str, Callable[[], nn.Module]] = {
    "mnist-cnn": MnistCNN,
}


def zoo(name: str) -> nn.Module:
    """A bundled network with its trained weights, in eval mode and float32."""
    if name not in ZOO:
        raise ValueError(f"no zoo model named {name!r}: choose one of {', '.join(ZOO)}")
    from safetensors.torch import load_file

    model = ZOO[name]()
    with as_file(files(__package__) / "zoo" / f"{name}.safetensors") as path:
        weights = load_file(path)
    model.load_state_dict({key: value.to(torch.float32) for key, value in weights.items()})
    return model.eval()
