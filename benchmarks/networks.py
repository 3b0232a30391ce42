"""The networks of the suite that are not in the zoo: one with smooth activations, one whose gradients are masked.

Both are the same small network on MNIST digits, trained by experiments/train/suite_networks.py.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from marginattack.sources.networks import zoo

WEIGHTS = Path(__file__).parent / "networks"


class WinnersTakeAll(nn.Module):
    """Keeps the largest share of a layer's activations and sets the others to zero (Xiao, Zhong, Zheng 2020).

    The set of survivors changes abruptly with the input, so the network is discontinuous and its gradients are masked:
    they say little about its surroundings.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        kept = max(1, round(self.share * flat.shape[1]))
        threshold = flat.topk(kept, dim=1).values[:, -1:]
        return (flat * (flat >= threshold)).view_as(x)


class SmallCNN(nn.Module):
    """5×5 convolutions of 16 and 32 filters with stride 2, then 64 hidden units; pixels in [0, 1] to ten logits."""

    def __init__(self, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), activation(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2), activation(),
            nn.Flatten(), nn.Linear(7 * 7 * 32, 64), activation(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mnist-gelu": lambda: SmallCNN(nn.GELU),
    "mnist-kwta": lambda: SmallCNN(lambda: WinnersTakeAll(0.15)),
}


def network(name: str) -> nn.Module:
    """A network of the suite or of the zoo with its trained weights, in eval mode and float32."""
    if name not in NETWORKS:
        return zoo(name)
    model = NETWORKS[name]()
    weights = load_file(WEIGHTS / f"{name}.safetensors")
    model.load_state_dict({key: value.to(torch.float32) for key, value in weights.items()})
    return model.eval()
