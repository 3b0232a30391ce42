"""Train the zoo's mnist-cnn: the paper's MNIST network on the 60,000 training digits.

    python experiments/train/mnist_cnn.py ../shared/data/mnist.npz

Adam, one-cycle learning rate, shifts by up to two pixels; seed fixed. The weights are rounded to half precision
and the accuracy that is printed is that of the rounded network, which is the one that is shipped.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from marginattack.sources.networks import MnistCNN

EPOCHS, BATCH, PEAK_RATE, SEED = 10, 128, 2e-3, 0
OUT = Path(__file__).parents[2] / "src/marginattack/sources/zoo/mnist-cnn.safetensors"


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to two pixels in each direction, zeros coming in."""
    n = len(images)
    move = torch.randint(-2, 3, (n, 2, 1), generator=generator)
    grid = torch.arange(28)
    rows, columns = grid + move[:, 0] + 2, grid + move[:, 1] + 2
    padded = nn.functional.pad(images[:, 0], (2, 2, 2, 2))
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].unsqueeze(1)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    hits = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(1000), labels.split(1000), strict=True)
    )
    return hits / len(labels)


def main(data: str) -> None:
    with np.load(data) as arrays:
        x, y, x_test, y_test = (torch.from_numpy(arrays[k]) for k in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test = (images.unsqueeze(1).float() / 255 for images in (x, x_test))
    y, y_test = y.long(), y_test.long()

    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = MnistCNN()
    steps = EPOCHS * (len(x) // BATCH)
    optimiser = torch.optim.Adam(model.parameters(), lr=PEAK_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        began = time.time()
        model.train()
        for rows in torch.randperm(len(x), generator=generator).split(BATCH)[: len(x) // BATCH]:
            loss = nn.functional.cross_entropy(model(shifted(x[rows], generator)), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(
            f"epoch {epoch}: test accuracy {accuracy(model.eval(), x_test, y_test):.2%}, {time.time() - began:.0f} s",
            flush=True,
        )

    weights = {key: value.half() for key, value in model.state_dict().items()}
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    print(f"rounded to half precision: test accuracy {accuracy(model, x_test, y_test):.2%}")
    OUT.parent.mkdir(exist_ok=True)
    save_file(weights, OUT)


if __name__ == "__main__":
    main(*sys.argv[1:])
