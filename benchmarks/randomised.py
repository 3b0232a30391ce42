"""Do stored points of randomised models hold on fresh draws? → benchmarks/records/randomised.json

Small networks, trained here on the bundled digits: Gaussian noise on the input, dropout left on, random resizing and
padding with one draw per batch (Xie et al. 2018). Each stored point is tried again on 200 fresh draws: it holds if more
than half of them misclassify it.

    python benchmarks/randomised.py
"""

from typing import Any

import record
import torch
from torch import Tensor, nn
from torch.nn import functional

import marginattack as ma
from marginattack.sources.data import samples

SAMPLES, DRAWS, BUDGET, EOT = 300, 200, 1000, 10
MODELS = {"gaussian noise": "l2", "dropout left on": "linf", "random resizing and padding": "l2"}


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.25 * torch.randn_like(x)


class Dropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.3, training=True)


class ResizeAndPad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        size = int(torch.randint(25, 29, ()))
        left, top = (int(torch.randint(0, 29 - size, ())) for _ in range(2))
        resized = functional.interpolate(x, (size, size), mode="bilinear")
        return functional.pad(resized, (left, 28 - size - left, top, 28 - size - top))


class Counted(nn.Module):
    """Counts the rows of forwards that carry no gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += 0 if x.requires_grad else len(x)
        logits: Tensor = self.model(x)
        return logits


def train(kind: str, x: Tensor, y: Tensor) -> nn.Module:
    """A network of one hidden layer with its randomness, trained for 40 epochs."""
    front = {"gaussian noise": Noise, "random resizing and padding": ResizeAndPad}.get(kind, nn.Identity)
    inside = Dropout if kind == "dropout left on" else nn.Identity
    net = nn.Sequential(front(), nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), inside(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(40):
        for rows in torch.randperm(len(x)).split(100):
            optimiser.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net


@torch.no_grad()
def share_wrong(model: nn.Module, points: Tensor, y: Tensor) -> Tensor:
    """The share of fresh draws that misclassify each point."""
    return torch.stack([model(points).argmax(1) != y for _ in range(DRAWS)]).double().mean(0)


def measure(kind: str, norm: str) -> dict[str, Any]:
    """Measure one model in one norm and try the stored points again."""
    torch.manual_seed(0)
    x, y = samples("mnist", 1000)
    model = Counted(train(kind, x, y))
    x, y = x[:SAMPLES], y[:SAMPLES]
    found = ma.measure(model, x, y, norm, randomized=True, eot=EOT, budget=BUDGET)
    drawn = model.rows / SAMPLES
    torch.manual_seed(1)
    wrong = share_wrong(model, found.adversarial, y)[found.success]
    return {
        "model": kind, "norm": norm, "accuracy": found.summary()["accuracy"], "stored": int(found.success.sum()),
        "rejected": int(found.rejected.sum()), "median": found.summary()["median"],
        "hold": float((wrong > 0.5).double().mean()), "lowest_rate": float(wrong.min()),
        "median_rate": float(wrong.median()), "forwards_without_gradient_per_sample": drawn,
    }  # fmt: skip


def linear_excess() -> float:
    """How far stored points of a linear model lie beyond its exact margins at the rate 1/2, in units of the noise."""
    torch.manual_seed(0)
    x, layer, sigma = torch.rand(SAMPLES, 20), nn.Linear(20, 2, bias=False), 0.25
    w = layer.weight[0] - layer.weight[1]
    x -= ((x @ w).mean() / w.norm() ** 2 * w).detach()  # both classes
    exact = ((x @ w).abs() / w.norm()).detach().double()
    found = ma.measure(
        nn.Sequential(Noise(), layer), x, (x @ w < 0).long(), "l2", bounds=(-9, 9), randomized=True, budget=BUDGET
    )
    return float(((found.distance - exact) / sigma).median())


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = [measure(kind, norm) for kind, norm in MODELS.items()]
    rule = str(ma.Randomized(eot=EOT))
    excess = linear_excess()
    print(*rows, excess, sep="\n")
    record.write("randomised", {"samples": SAMPLES, "budget": BUDGET, "rule": rule, "rows": rows, "linear": excess})
