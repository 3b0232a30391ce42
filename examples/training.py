"""Margins during training: a fixed subset is measured every few epochs, within a time limit.

$ python examples/training.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from marginattack.integrations.training import measure_epoch
from marginattack.sources.data import samples

EVERY = 2  # epochs between two measurements


def main(epochs: int = 6) -> list[dict[str, float]]:
    """Train a small network on bundled digits; print accuracy and margins."""
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
        values = measure_epoch(model, watched, classes, epoch, every=EVERY, seconds=30.0, norm="l2", budget=50)
        if values:  # log=… also logs them to TensorBoard, MLflow or W&B
            print(
                f"epoch {epoch + 1}: accuracy {values['margin/accuracy']:.0%}, median {values['margin/median']:.3f}, "
                f"10 % below {values['margin/p10']:.3f}"
            )
            history.append(values)
    return history


if __name__ == "__main__":
    main()
