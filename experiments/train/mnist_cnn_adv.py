"""Train the zoo's mnist-cnn-adv: the paper's MNIST network, trained against PGD as in the MNIST challenge.

    python experiments/train/mnist_cnn_adv.py ../shared/data/mnist.npz [epochs [limit]]

PGD with 40 steps of 0.01 from a random start at ε = 0.3 (Madry et al. 2018), but in minutes on a GPU: larger batches,
one learning-rate cycle, averaged weights, and ε growing over the first epochs, without which such training can get
stuck at a constant prediction. The accuracies printed last are those of the shipped network, rounded to half precision.
"""

import copy
import sys

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
    read_mnist,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from marginattack.sources.networks import MnistCNN

BATCH, PEAK_RATE, DECAY, SEED = 256, 1e-3, 0.999, 0
EPSILON, STEP, STEPS, GROWTH = 0.3, 0.01, 40, 0.15  # GROWTH: the share of the training over which ε grows
SHIFT = 1


def shift(padded: Tensor, rows: Tensor) -> Tensor:
    """These images, each shifted by up to SHIFT pixels in each direction."""
    grid = torch.arange(28, device=DEVICE)
    move = torch.randint(0, 2 * SHIFT + 1, (2, len(rows), 1), device=DEVICE)
    down, right = grid + move[0], grid + move[1]
    return padded[rows[:, None, None], 0, down[:, :, None], right[:, None, :]].unsqueeze(1)


def main(data: str, epochs: int = 45, limit: int = 60000) -> None:
    """Train, and log every epoch."""
    torch.manual_seed(SEED)
    x, y, x_test, y_test = (part.to(DEVICE) for part in read_mnist(data, limit))
    padded = nn.functional.pad(x, (SHIFT,) * 4)
    model = MnistCNN().to(DEVICE)
    bf16_copy = copy.deepcopy(model).requires_grad_(False).bfloat16()  # the network that the attack sees
    average = Average(model, DECAY)
    rate, epsilon = torch.tensor(0.0, device=DEVICE), torch.tensor(0.0, device=DEVICE)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=DEVICE == "cuda")
    rows, loss_sum = torch.zeros(BATCH, dtype=torch.long, device=DEVICE), torch.zeros((), device=DEVICE)

    def step() -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(bf16_copy.parameters()), list(model.parameters()))
        images, labels = shift(padded, rows), y[rows]
        images = pgd(lambda x: bf16_copy(x.bfloat16()), images, labels, epsilon, epsilon / EPSILON * STEP, STEPS)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            logits = model(images)
        loss = cross_entropy(logits.float(), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        average.update()
        loss_sum.add_(loss.detach())

    record = Record("mnist-cnn-adv", {
        "epochs": epochs, "batch": BATCH, "peak_rate": PEAK_RATE, "decay": DECAY, "seed": SEED, "epsilon": EPSILON,
        "step": STEP, "steps": STEPS, "growth": GROWTH, "shift": SHIFT,
    })  # fmt: skip
    run, each = capture(step), len(y) // BATCH
    for i, (epoch, chosen) in enumerate(epochs_of_rows(len(y), BATCH, epochs)):
        progress = i / (each * epochs)
        rate.fill_(one_cycle(progress, PEAK_RATE))
        epsilon.fill_(EPSILON * min(1, (progress + 0.01) / GROWTH))
        rows.copy_(chosen)
        run()
        if (i + 1) % each == 0:
            values = {"loss": loss_sum.item() / each, "test": accuracy(average.model, x_test, y_test)}
            if epoch % 5 == 4:
                few = x_test[:1000], y_test[:1000]
                values["pgd40"] = attacked_accuracy(average.model, *few, EPSILON, STEP, STEPS)
                record.save(average.model)
            record.epoch(epoch=epoch, **values)
            loss_sum.zero_()

    final = average.model
    final.load_state_dict({key: value.float() for key, value in half_weights(final).items()})
    record.save(final, test=accuracy(final, x_test, y_test))
    record.save(final, pgd100_5restarts=attacked_accuracy(final, x_test, y_test, EPSILON, STEP, 100, 5))


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
