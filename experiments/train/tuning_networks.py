"""Train the networks on which Race is tuned: none of them is in the zoo, the suite or any other benchmark.

    python experiments/train/tuning_networks.py OUT [NAME ...] --mnist mnist.npz --cifar10 FOLDER

Small ones, so that an experiment takes seconds on one CPU core: a CNN on MNIST and a ResNet8 on CIFAR-10, each trained
plainly, against PGD in ℓ∞ and in ℓ2, and with TRADES (Zhang et al. 2019). FOLDER is what get_cifar10_train.py writes,
with cifar10_test.npz. Weights and a record per network are written to OUT; ``load(OUT, name)`` opens them.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from cifar10_resnet32 import crops
from cifar10_resnet32 import load as read_cifar10
from common import accuracy, half_weights, read_mnist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from marginattack.sources.networks import BasicBlock


class TuningCNN(nn.Module):
    """4×4 convolutions of 16 and 32 filters with stride 2, then 100 hidden units; pixels in [0, 1] to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(7 * 7 * 32, 100), nn.ReLU(), nn.Linear(100, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


class PooledCNN(nn.Module):
    """5×5 convolutions of 16 and 32 filters, each pooled by 2, then 128 hidden units; pixels to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(7 * 7 * 32, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


class ResNet8(nn.Module):
    """One block each of 16, 32 and 64 channels; pixels in [0, 1] to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*(BasicBlock(a, b) for a, b in pairwise((16, 16, 32, 64))))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(torch.relu(self.bn(self.conv(4 * images - 2)))).mean((2, 3)))
        return logits


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained; ``trades`` is the weight of TRADES' second term, 0 for training on attacked inputs."""

    model: Callable[[], nn.Module]
    epochs: int
    peak_rate: float
    norm: str = "linf"
    epsilon: float = 0.0
    steps: int = 5
    trades: float = 0.0
    growth: float = 0.5  # share of the steps over which ε grows
    batch: int = 128
    seed: int = 0


NETWORKS = {
    "mnist-plain": Training(model=TuningCNN, epochs=3, peak_rate=3e-3),
    "mnist-linf": Training(model=TuningCNN, epochs=6, peak_rate=2e-3, epsilon=0.3, steps=7),
    "mnist-pool-linf": Training(model=PooledCNN, epochs=5, peak_rate=2e-3, epsilon=0.3, steps=6),
    "mnist-l2": Training(model=TuningCNN, epochs=4, peak_rate=3e-3, norm="l2", epsilon=1.5),
    "mnist-trades": Training(model=TuningCNN, epochs=5, peak_rate=2e-3, epsilon=0.3, trades=2.0, steps=6),
    "cifar10-plain": Training(model=ResNet8, epochs=6, peak_rate=1e-2),
    "cifar10-linf": Training(model=ResNet8, epochs=5, peak_rate=1e-2, epsilon=8 / 255, steps=2),
}


def attack(logits: Callable[[Tensor], Tensor], x0: Tensor, norm: str, epsilon: float, steps: int,
           loss: Callable[[Tensor], Tensor]) -> Tensor:  # fmt: skip
    """Projected gradient ascent on a loss of the logits, from a random start."""

    def direction(v: Tensor) -> Tensor:
        return v.sign() if norm == "linf" else v / v.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)

    def onto_ball(x: Tensor) -> Tensor:
        delta = x - x0
        if norm == "linf":
            delta = delta.clamp(-epsilon, epsilon)
        else:
            delta = delta * (epsilon / delta.flatten(1).norm(dim=1).clamp(min=epsilon).view(-1, 1, 1, 1))
        return (x0 + delta).clamp(0, 1)

    start = epsilon * (2 * torch.rand_like(x0) - 1) if norm == "linf" else epsilon * direction(torch.randn_like(x0)) / 2
    x = onto_ball(x0 + start)
    for _ in range(steps):
        x.requires_grad_()
        (g,) = torch.autograd.grad(loss(logits(x)), x)
        x = onto_ball(x.detach() + 2 * epsilon / steps * direction(g))
    return x


def objective(model: nn.Module, how: Training, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """The loss of a batch."""
    if not epsilon:
        return cross_entropy(model(x), y)
    model.eval()
    if not how.trades:
        z = attack(model, x, how.norm, epsilon, how.steps, lambda logits: cross_entropy(logits, y, reduction="sum"))
        model.train()
        return cross_entropy(model(z), y)
    clean = model(x).softmax(1).detach()
    z = attack(
        model, x, how.norm, epsilon, how.steps, lambda logits: kl_div(logits.log_softmax(1), clean, reduction="sum")
    )
    model.train()
    logits = model(x)
    moved = kl_div(model(z).log_softmax(1), logits.softmax(1), reduction="batchmean")
    return cross_entropy(logits, y) + how.trades * moved


def train(how: Training, rows_of: Callable[[Tensor], Tensor], labels: Tensor) -> nn.Module:
    """Adam with a one-cycle learning rate."""
    torch.manual_seed(how.seed)
    model, total = how.model(), how.epochs * (len(labels) // how.batch)
    optimiser = torch.optim.Adam(model.parameters(), lr=how.peak_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, how.peak_rate, total_steps=total)
    for _ in range(how.epochs):
        for rows in torch.randperm(len(labels)).split(how.batch)[: len(labels) // how.batch]:
            model.train()
            epsilon = how.epsilon * min(1.0, schedule.last_epoch / (how.growth * total))
            loss = objective(model, how, rows_of(rows), labels[rows], epsilon)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    weights = {key: value.to(torch.get_default_dtype()) if value.is_floating_point() else value
               for key, value in half_weights(model).items()}  # fmt: skip
    model.load_state_dict(weights)
    return model.eval()


def load(folder: Path, name: str) -> nn.Module:
    """A trained network, in eval mode."""
    model = NETWORKS[name].model()
    model.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return model.eval()


def main() -> None:
    """Train the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--mnist", help="mnist.npz")
    parser.add_argument("--cifar10", type=Path, help="a folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in options.names or NETWORKS:
        how, began = NETWORKS[name], time.time()
        if name.startswith("mnist"):
            x, y, x_test, y_test = read_mnist(options.mnist)
            model = train(how, x.__getitem__, y)
        else:
            padded, y, x_test, y_test = read_cifar10(options.cifar10, 60_000)
            model = train(how, lambda rows, padded=padded: crops(padded, rows), y)  # type: ignore[misc]
        record = {"network": name, "test_accuracy": accuracy(model, x_test, y_test),
                  "seconds": round(time.time() - began, 1), **asdict(how), "model": how.model.__name__}  # fmt: skip
        print(record, flush=True)
        save_file(half_weights(model), options.out / f"{name}.safetensors")
        (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
