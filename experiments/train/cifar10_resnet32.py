"""Train the zoo's cifar10-resnet32, or with --adversarial its robust sibling cifar10-resnet32-adv.

    python ../shared/data/get_cifar10_train.py DATA && cp ../shared/data/cifar10_test.npz DATA
    python experiments/train/cifar10_resnet32.py DATA [--adversarial] [--epochs N] [--limit N]

SGD with Nesterov momentum, one learning-rate cycle, crops and flips, averaged weights; adversarial training with PGD in
ℓ∞ at 8/255 from a random start. The attack uses the network in eval mode with each normalisation folded into its
convolution: the same function in half the time. The accuracies printed last are those of the shipped network, rounded
to half precision.
"""

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
from common import (
    DEVICE,
    Average,
    Record,
    accuracy,
    attacked_accuracy,
    capture,
    epochs_of_rows,
    half_weights,
    one_cycle,
    pgd,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from marginattack.sources.networks import ResNet32

BATCH, MOMENTUM, DECAY, SEED = 256, 0.9, 0.998, 0
PLAIN = {"epochs": 120, "peak_rate": 0.2, "weight_decay": 5e-4}
ADVERSARIAL = {"epochs": 75, "peak_rate": 0.2, "weight_decay": 2e-4}
EPSILON, STEP, STEPS = 8 / 255, 2 / 255, 7


def load(folder: Path, limit: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images padded for crops, (n, 40, 40, 3) bytes; test images, (n, 3, 32, 32) in [0, 1]; labels."""
    parts = [np.load(folder / f"cifar10_train_{i}of3.npz") for i in range(3)]
    x, y = (torch.from_numpy(np.concatenate([part[k] for part in parts])[:limit]).to(DEVICE) for k in "xy")
    with np.load(folder / "cifar10_test.npz") as arrays:
        x_test, y_test = (torch.from_numpy(arrays[k][:limit]).to(DEVICE) for k in "xy")
    padded = nn.functional.pad(x, (0, 0, 4, 4, 4, 4))
    return padded, y.long(), x_test.permute(0, 3, 1, 2).float() / 255, y_test.long()


def crops(padded: Tensor, rows: Tensor) -> Tensor:
    """A random crop of each of these images, half of them mirrored; channels last in memory."""
    grid = torch.arange(32, device=DEVICE)
    move = torch.randint(0, 9, (2, len(rows), 1), device=DEVICE)
    mirrored = torch.rand((len(rows), 1), device=DEVICE) < 0.5
    down, right = grid + move[0], torch.where(mirrored, 31 - grid, grid) + move[1]
    return padded[rows[:, None, None], down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2).float() / 255


class Folded:
    """A bfloat16 copy of a network in eval mode, each normalisation folded into the convolution before it."""

    def __init__(self, model: ResNet32) -> None:
        self.source, self.model = model, copy.deepcopy(model).requires_grad_(False).eval()
        self.folds: list[tuple[nn.Conv2d, nn.BatchNorm2d, nn.Conv2d]] = []
        for theirs, mine in zip(list(model.modules()), list(self.model.modules()), strict=True):
            for c, b in (("conv1", "bn1"), ("conv2", "bn2")):
                if hasattr(theirs, b):
                    conv, bn, to = getattr(theirs, c), getattr(theirs, b), getattr(mine, c)
                    to.bias = nn.Parameter(torch.zeros_like(bn.bias), requires_grad=False)
                    setattr(mine, b, nn.Identity())
                    self.folds.append((conv, bn, to))
        self.model.bfloat16()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights of the source."""
        for conv, bn, to in self.folds:
            assert bn.running_mean is not None
            assert bn.running_var is not None
            assert to.bias is not None
            weight, bias = nn.utils.fusion.fuse_conv_bn_weights(
                conv.weight, None, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
            )
            to.weight.copy_(weight)
            to.bias.copy_(bias)
        self.model.head.load_state_dict(self.source.head.state_dict())

    def __call__(self, images: Tensor) -> Tensor:
        return self.model.logits(((images - self.source.mean) / self.source.std).bfloat16())


def train(
    data: tuple[Tensor, Tensor, Tensor, Tensor], record: Record, settings: dict[str, float], robust: bool
) -> nn.Module:
    """The averaged network after one learning-rate cycle."""
    padded, y, x_test, y_test = data
    model = ResNet32().to(DEVICE)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    folded, average = Folded(model), Average(model, DECAY)
    rate = torch.tensor(0.0, device=DEVICE)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=MOMENTUM, nesterov=True, weight_decay=settings["weight_decay"], fused=True
    )
    rows, loss_sum = torch.zeros(BATCH, dtype=torch.long, device=DEVICE), torch.zeros((), device=DEVICE)

    def step() -> None:
        images, labels = crops(padded, rows), y[rows]
        if robust:
            folded.refresh()
            images = pgd(folded, images, labels, EPSILON, STEP, STEPS)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            logits = model(images)
        loss = cross_entropy(logits.float(), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        average.update()
        loss_sum.add_(loss.detach())

    epochs, run, each = int(settings["epochs"]), capture(step), len(y) // BATCH
    for i, (epoch, chosen) in enumerate(epochs_of_rows(len(y), BATCH, epochs)):
        rate.fill_(one_cycle(i / (each * epochs), settings["peak_rate"]))
        rows.copy_(chosen)
        run()
        if (i + 1) % each == 0:
            values = {"loss": loss_sum.item() / each, "test": accuracy(average.model, x_test, y_test)}
            if epoch % 5 == 4:
                if robust:
                    few = x_test[:1000], y_test[:1000]
                    values["pgd20"] = attacked_accuracy(average.model, *few, EPSILON, STEP, 20)
                record.save(average.model)
            record.epoch(epoch=epoch, **values)
            loss_sum.zero_()
    return average.model


def main() -> None:
    """Train, and log every epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--adversarial", action="store_true")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int, default=50000)
    options = parser.parse_args()
    settings = dict(ADVERSARIAL if options.adversarial else PLAIN)
    settings["epochs"] = options.epochs or settings["epochs"]
    torch.manual_seed(SEED)
    common = {"batch": BATCH, "momentum": MOMENTUM, "decay": DECAY, "seed": SEED}
    attack = {"epsilon": EPSILON, "step": STEP, "steps": STEPS} if options.adversarial else {}
    name = "cifar10-resnet32-adv" if options.adversarial else "cifar10-resnet32"
    record, data = Record(name, settings | common | attack), load(options.data, options.limit)
    final = train(data, record, settings, options.adversarial)
    final.load_state_dict({key: value.float() for key, value in half_weights(final).items()})
    record.save(final, test=accuracy(final, *data[2:]))
    record.save(final, pgd20=attacked_accuracy(final, *data[2:], EPSILON, STEP, 20))


if __name__ == "__main__":
    main()
