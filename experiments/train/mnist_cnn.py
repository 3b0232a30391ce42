"""Train the zoo's mnist-cnn: the paper's MNIST network on the 60,000 training digits.

    python experiments/train/mnist_cnn.py ../shared/data/mnist.npz

Adam, one-cycle learning rate, shifts by up to two pixels, fixed seed. The weights are rounded to half precision, and
the printed accuracy is that of the rounded network, which is the one that is shipped.
"""

import sys

import torch
from common import ZOO, read_mnist, train_with_adam
from safetensors.torch import save_file
from torch import Tensor, nn

from marginattack.sources.networks import MnistCNN


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to two pixels in each direction, padded with zeros."""
    n = len(images)
    move = torch.randint(-2, 3, (n, 2, 1), generator=generator)
    grid = torch.arange(28)
    rows, columns = grid + move[:, 0] + 2, grid + move[:, 1] + 2
    padded = nn.functional.pad(images[:, 0], (2, 2, 2, 2))
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def main(data: str) -> None:
    """Train and write the weights."""
    weights, test = train_with_adam(
        MnistCNN, read_mnist(data), name="mnist-cnn", epochs=10, batch=128, peak_rate=2e-3, seed=0, augment=shift
    )
    print(f"rounded to half precision: test accuracy {test:.2%}")
    ZOO.mkdir(exist_ok=True)
    save_file(weights, ZOO / "mnist-cnn.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
