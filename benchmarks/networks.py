"""Networks on MNIST digits that are not in the zoo, trained by experiments/train/suite_networks.py.

Two for the suite, one with smooth activations and one whose gradients are masked; and ReLU networks that are small
enough for exact margins, each trained plainly and (``-adv``) against attacks.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
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


def mlp(*hidden: int) -> nn.Module:
    """A ReLU network of fully connected layers, from 784 pixels to ten logits."""
    sizes = (784, *hidden)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], 10))


def tiny_cnn() -> nn.Module:
    """A 6×6 convolution of 3 filters with stride 4, then 16 hidden units: 124 ReLUs."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 6, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(108, 16), nn.ReLU(), nn.Linear(16, 10)
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mnist-gelu": lambda: SmallCNN(nn.GELU),
    "mnist-kwta": lambda: SmallCNN(lambda: WinnersTakeAll(0.15)),
}
SHAPES: dict[str, Callable[[], nn.Module]] = {
    "mlp-20": partial(mlp, 20),
    "mlp-50": partial(mlp, 50),
    "mlp-24-24": partial(mlp, 24, 24),
    "mlp-50-50": partial(mlp, 50, 50),
    "conv": tiny_cnn,
}
SMALL = {f"{name}{training}": make for name, make in SHAPES.items() for training in ("", "-adv")}


def network(name: str) -> nn.Module:
    """One of these networks, or one of the zoo, with its trained weights, in eval mode and float32."""
    made = NETWORKS | SMALL
    if name not in made:
        return zoo(name)
    model = made[name]()
    weights = load_file(WEIGHTS / f"{name}.safetensors")
    model.load_state_dict({key: value.to(torch.float32) for key, value in weights.items()})
    return model.eval()
