"""Randomised models, and how often they misclassify points."""

from collections.abc import Callable
from typing import Any

import torch
from run_models import Small
from torch import Tensor, nn
from torch.nn import functional


class Noisy(nn.Module):
    """Gaussian noise in front of a model."""

    def __init__(self, model: nn.Module, sigma: float) -> None:
        super().__init__()
        self.model, self.sigma = model, sigma

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x + self.sigma * torch.randn_like(x))
        return logits


class Dropout(nn.Module):
    """A network whose dropout is left on in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(functional.dropout(torch.tanh(6 * self.first(x - 0.5)), 0.3, training=True))
        return logits


class ResizeAndPad(nn.Module):
    """Random resizing and padding (Xie et al. 2018) in front of a convolutional network: one draw per batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        size = int(torch.randint(8, 11, ()))
        left, top = (int(torch.randint(0, 11 - size, ())) for _ in range(2))
        resized = functional.interpolate(x, (size, size), mode="nearest")
        logits: Tensor = self.net(functional.pad(4 * resized - 2, (left, 10 - size - left, top, 10 - size - top)))
        return logits


def noisy() -> nn.Module:
    """The small network of runs with noise in front, for the command line."""
    return Noisy(Small(), 0.005).eval()


class Flipping(Small):
    """The small network, which mostly prefers the next class: a few draws confirm that or do not."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        flipped = (torch.rand(len(images), 1) < 0.94).to(logits)
        return logits + 100 * flipped * functional.one_hot((logits.argmax(1) + 1) % 4, 4)


def flipping() -> nn.Module:
    """For the command line."""
    return Flipping().eval()


def make(model: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model with fixed random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model()


def votes(model: nn.Module, x: Tensor, draws: int, seed: int = 1) -> Tensor:
    """How often each class is predicted, (n, classes)."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        return sum(
            (functional.one_hot(model(x).argmax(1), 4) for _ in range(draws)), torch.zeros((), dtype=torch.int64)
        )


def clear_inputs(model: nn.Module, shape: tuple[int, ...], n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs inside the unit box that the model classifies alike in nine of ten draws, and these classes."""
    x = torch.rand(8 * n, *shape, generator=torch.Generator().manual_seed(seed))
    share, label = votes(model, x, 100).max(1)
    rows = (share >= 90).nonzero()[:n, 0]
    assert len(rows) == n
    return x[rows], label[rows]


class Linear:
    """A linear model with Gaussian noise, in a box that never binds: every rate and every margin are known."""

    def __init__(self, n: int, *, sigma: float = 0.05, d: int = 12) -> None:
        generator = torch.Generator().manual_seed(0)
        self.w = torch.randn(d, generator=generator)
        self.x = torch.rand(n, d, generator=generator)
        self.side = (self.x - 0.5) @ self.w
        layer = nn.Linear(d, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.stack([self.w, -self.w]) / 2)
            layer.bias.copy_(torch.tensor([-0.25, 0.25]) * self.w.sum())
        self.model, self.sigma = Noisy(layer, sigma), sigma
        self.y = (self.side < 0).long()

    def rate(self, points: Tensor) -> Tensor:
        """The exact probability that each point is misclassified."""
        margin = ((points - 0.5) @ self.w * (1 - 2 * self.y)).double()
        rate: Tensor = torch.special.ndtr(-margin / (self.sigma * self.w.double().norm()))
        return rate

    def margin(self, rate: float, dual: Any) -> tuple[Tensor, float]:
        """The exact distance at which the rate is reached, and that of the noise; ``dual`` is the dual norm's order."""
        w = self.w.double()
        unit = self.sigma * float(w.norm() / w.norm(dual))
        quantile = float(torch.special.ndtri(torch.tensor(rate, dtype=torch.float64)))
        return self.side.abs().double() / w.norm(dual) + quantile * unit, unit
