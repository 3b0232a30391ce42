"""Margins during training: a fixed subset is measured every few epochs.

$ python examples/training.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import marginattack as ma
from marginattack.sources.data import samples

EVERY = 2  # epochs between two measurements


def main(epochs: int = 6) -> list[ma.Margins]:
    """Train a small network on bundled digits; print accuracy, loss and margins."""
    torch.manual_seed(0)
    images, labels = samples("mnist", 1000)
    loader = DataLoader(TensorDataset(images[100:], labels[100:]), batch_size=50, shuffle=True)
    watched, classes = images[:24], labels[:24]  # the same inputs every time
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    history = []
    for epoch in range(epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
        if (epoch + 1) % EVERY == 0:  # measure() sets eval mode and restores the model, gradients included
            margins = ma.measure(model, watched, classes, norm="l2", budget=50, diagnose=False)
            summary = margins.summary()
            print(f"epoch {epoch + 1}: accuracy {summary['accuracy']:.0%}, median margin {summary['median']:.3f}")
            history.append(margins)
    return history


if __name__ == "__main__":
    main()
