"""Margins of your own model: replace ``make_model`` and ``load_data``.

$ python examples/own_model.py
"""

import torch
from torch import Tensor, nn

import marginattack as ma
from marginattack.sources.data import samples


def make_model() -> nn.Module:
    """Any module that takes inputs and returns logits. Normalisation belongs inside, softmax does not."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data() -> tuple[Tensor, Tensor]:
    """Inputs inside the bounds, here pixels in [0, 1], and their classes."""
    return samples("mnist", 1000)


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Train the stand-in; a model of yours is trained already."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def main() -> ma.Margins:
    """Measure the first 20 inputs and look at the most fragile ones."""
    model, (images, labels) = make_model(), load_data()
    train(model, images, labels)
    margins = ma.measure(model, images[:20], labels[:20], norm="linf", bounds=(0, 1), budget=100)
    print(margins)
    for eps in (0.01, 0.02, 0.05):
        print(f"robust accuracy at {eps}: {margins.robust_accuracy(eps):.0%}")
    for row in margins.distance.argsort()[:3].tolist():
        change = f"{margins.label[row]} → {margins.adversarial_label[row]}"
        print(f"input {row}: {change} at distance {margins.distance[row]:.4f}")
    margins.save("own-model.parquet")
    return margins


if __name__ == "__main__":
    main()
