"""Small models that the tests share, and inputs that they classify correctly."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def smooth(*, d: int = 6, classes: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A network of one hidden layer whose boundaries cross the unit box."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, last = nn.Linear(d, 16), nn.Linear(16, classes)
        with torch.no_grad():
            first.weight.copy_(2 * torch.randn(16, d) / d**0.5)
            first.bias.copy_(-first.weight.sum(1) / 2)  # the middle of the box is the middle of every slope
            last.weight.copy_(torch.randn(classes, 16))
    return nn.Sequential(first, nn.Tanh(), last).to(dtype)


def inputs(model: nn.Module, shape: tuple[int, ...] = (6,), *, n: int = 20, seed: int = 0) -> Batch:
    """Points well inside the unit box, and the labels that the model predicts."""
    dtype = next((p.dtype for p in model.parameters()), torch.float64)
    x = 0.1 + 0.8 * torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        return x.to(dtype), model(x.to(dtype)).argmax(1)


class After(nn.Module):
    """A function of a model's output."""

    def __init__(self, model: nn.Module, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x: Tensor) -> object:
        return self.function(self.model(x))


class Function(nn.Module):
    """A function of the input as a model without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def constant(*logits: float) -> Function:
    """A model with the same logits for every input."""
    return Function(lambda x: torch.tensor(logits, dtype=x.dtype).expand(len(x), -1))


class Stubborn(nn.Linear):
    """A model that ignores eval()."""

    def train(self, mode: bool = True) -> "Stubborn":
        self.training = True
        return self


class Buffered(nn.Module):
    """A model with a normalisation, a dropout and a counter of its calls, updated in place or replaced."""

    count: Tensor

    def __init__(self, *, replaced: bool = False) -> None:
        super().__init__()
        self.norm, self.drop, self.net = nn.BatchNorm1d(6), nn.Dropout(0.5), smooth(dtype=torch.float32)
        self.register_buffer("count", torch.zeros(()))
        self.replaced = replaced

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1 if self.replaced else self.count.add_(1)
        logits: Tensor = self.net(self.drop(self.norm(x)))
        return logits


class Fickle(nn.Module):
    """A model that swaps its two classes in those calls for which ``when(number, rows, for a gradient)`` is true."""

    def __init__(self, model: nn.Module, when: Callable[[int, int, bool], bool]) -> None:
        super().__init__()
        self.model, self.when, self.calls = model, when, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.model(x)
        return logits.flip(1) if self.when(self.calls, len(x), x.requires_grad) else logits
