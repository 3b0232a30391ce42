"""Random networks of every kind that bounds cover, whose decision boundaries cross the unit cube."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
OFFSET = 2.0**15  # of all logits: float32 rounds their differences to 1/256


class Residual(nn.Module):
    """A hidden layer with a shortcut."""

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first((x - 0.5) / 0.25))
        logits: Tensor = self.head(torch.relu(x + self.second(x)))
        return logits


class Concat(nn.Module):
    """Two branches with different activations, and the input itself."""

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(d, width), nn.Linear(d, width), nn.Linear(2 * width + d, 3)

    def forward(self, x: Tensor) -> Tensor:
        branches = [torch.relu(self.left(x)), torch.tanh(self.right(x)), x]
        logits: Tensor = self.head(torch.cat(branches, dim=1))
        return logits


class Offset(nn.Module):
    """A network whose logits are large and differ by little."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x) + OFFSET
        return logits


def dense(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Fully connected layers with activations in between."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def convolutions(*pool: nn.Module, size: int) -> nn.Sequential:
    """Two convolutions of images (1, 6, 6), with pooling in between."""
    first, second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 2)
    return nn.Sequential(first, nn.ReLU(), *pool, second, nn.ReLU(), nn.Flatten(), nn.Linear(size, 3))


def with_batch_norm() -> nn.Sequential:
    """A strided convolution and batch normalisation."""
    norm = nn.BatchNorm2d(3)
    norm.running_mean, norm.running_var = torch.randn(3) / 2, torch.rand(3) + 0.5
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), norm, nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(12, 3))


IMAGE = (1, 6, 6)
# by name: the shape of an input, and how to make the network
KINDS: dict[str, tuple[Shape, Callable[[], nn.Module]]] = {
    "relu": ((3,), lambda: dense(3, 3, 3, 3)),
    "leaky": ((3,), lambda: dense(3, 3, 2, 3, activation=lambda: nn.LeakyReLU(0.2))),
    "large logits": ((3,), lambda: Offset(dense(3, 4, 3))),
    "gelu": ((2,), lambda: dense(2, 8, 6, 3, activation=nn.GELU)),
    "silu": ((2,), lambda: dense(2, 8, 6, 3, activation=nn.SiLU)),
    "sigmoid": ((2,), lambda: dense(2, 8, 3, activation=nn.Sigmoid)),
    "residual": ((2,), lambda: Residual(2, 6)),
    "concat": ((2,), lambda: Concat(2, 5)),
    "wide": ((8,), lambda: dense(8, 24, 16, 5)),
    "average pool": (IMAGE, lambda: convolutions(nn.AvgPool2d(2), size=16)),
    "max-pool": ((1, 4, 4), lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))),
    "convolutions, max-pool": (IMAGE, lambda: convolutions(nn.MaxPool2d(2), size=16)),
    "batch norm": (IMAGE, with_batch_norm),
}


def random_network(kind: str, seed: int = 0) -> nn.Module:
    """A network of a kind, its neurons balanced; classes win about as often as each other."""
    shape, make = KINDS[kind]
    torch.manual_seed(seed)
    return balanced(make().eval().requires_grad_(False), shape)


def balanced(model: nn.Module, shape: Shape) -> nn.Module:
    """The model with layers whose outputs have mean 0 and standard deviation 1 over random inputs."""
    points = torch.rand(512, *shape, generator=torch.Generator().manual_seed(0))
    for layer in (each for each in model.modules() if isinstance(each, nn.Linear | nn.Conv2d)):
        seen: list[Tensor] = []
        hook = layer.register_forward_hook(lambda _, inputs, output, seen=seen: seen.append(output))
        model(points)
        hook.remove()
        axes = [0, *range(2, seen[0].ndim)]
        scale = seen[0].std(axes).clamp(min=1e-3)
        assert layer.bias is not None
        layer.weight.data /= scale.view(-1, *[1] * (layer.weight.ndim - 1))
        layer.bias.data = (layer.bias.data - seen[0].mean(axes)) / scale
    return model


def random_inputs(kind: str, n: int, seed: int) -> Tensor:
    """Inputs of a network of this kind."""
    return torch.rand(n, *KINDS[kind][0], generator=torch.Generator().manual_seed(seed))
