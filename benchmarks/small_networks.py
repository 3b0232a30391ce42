"""MNIST networks small enough for exact margins, and one trained for interval bounds.

Trained by experiments/train/bounds_networks.py. Names that end in -adv were trained against PGD.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).parent / "networks"


def dense(*hidden: int) -> nn.Sequential:
    """784 pixels, fully connected hidden layers with ReLU, ten logits."""
    sizes = (784, *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for i in range(len(hidden)):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def two_convolutions() -> nn.Sequential:
    """Two convolutions with 4 · 7 · 7 + 8 · 3 · 3 = 268 ReLUs."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 4, stride=4), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(72, 10),
    )  # fmt: skip


def interval_trained() -> nn.Sequential:
    """Two convolutions and a hidden layer: 2,416 ReLUs, 53,090 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "784-20-10": lambda: dense(20), "784-50-50-10": lambda: dense(50, 50), "784-50-50-10-adv": lambda: dense(50, 50),
    "two-conv": two_convolutions, "two-conv-adv": two_convolutions, "interval": interval_trained,
}  # fmt: skip


def small_network(name: str) -> nn.Module:
    """A network with its trained weights, in eval mode and float32."""
    model = NETWORKS[name]()
    weights = load_file(WEIGHTS / f"{name}.safetensors")
    model.load_state_dict({key: value.to(torch.float32) for key, value in weights.items()})
    return model.eval().requires_grad_(False)


def interval() -> nn.Module:
    """The network trained for interval bounds: ``--model benchmarks/small_networks.py:interval``."""
    return small_network("interval")
