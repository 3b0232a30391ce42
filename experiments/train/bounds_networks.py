"""Train the networks of benchmarks/small_networks.py on the 60,000 training digits: plainly, against PGD, on intervals.

    PYTHONPATH=benchmarks python experiments/train/bounds_networks.py mnist.npz [NAME ...]

Adam, one-cycle learning rate, fixed seed, one CPU core: seconds for most networks, eight minutes for the interval one.
The weights are rounded to half precision; the accuracies that are printed and stored in benchmarks/networks, with the
seconds, are those of the rounded network.

The interval network is trained on cross-entropy of the worst logits that intervals allow (Gowal et al. 2018), at a
radius and with a weight that grow over the first half, in the end mixed half and half with the plain loss.
"""

import json
import sys
import time
from typing import Any

import torch
from common import accuracy, attacked_accuracy, half_weights, pgd, read_mnist
from safetensors.torch import save_file
from small_networks import NETWORKS, WEIGHTS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

EPSILON = 0.1
SETTINGS: dict[str, Any] = {"batch": 256, "seed": 0}
PEAK_RATE = {"interval": 1e-3}  # the others: 5e-3


def worst_logits(model: nn.Sequential, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """Upper interval bounds of all logits but the label's, and its lower bound."""
    lo, hi = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=1)
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            middle, half = layer((lo + hi) / 2), (hi - lo) / 2
            weight = layer.weight.abs()
            if isinstance(layer, nn.Linear):
                spread = nn.functional.linear(half, weight)
            else:
                spread = nn.functional.conv2d(half, weight, None, layer.stride, layer.padding)
            lo, hi = middle - spread, middle + spread
        else:
            lo, hi = layer(lo), layer(hi)
    return torch.where(one_hot(labels, 10) > 0, lo, hi)


def loss_of(name: str, model: nn.Sequential, x: Tensor, y: Tensor, progress: float) -> Tensor:
    """The loss of a batch, at this share of the training."""
    if name.endswith("-adv"):
        return cross_entropy(model(pgd(model, x, y, EPSILON, EPSILON / 2, 3)), y)
    if name == "interval":
        share = min(1.0, max(0.0, 2 * progress - 0.2))  # of the full radius, and twice the weight of the worst case
        worst = cross_entropy(worst_logits(model, x, y, 1.2 * EPSILON * share), y)
        return (1 - share / 2) * cross_entropy(model(x), y) + share / 2 * worst
    return cross_entropy(model(x), y)


def train(name: str, data: tuple[Tensor, Tensor, Tensor, Tensor], epochs: int) -> dict[str, Any]:
    """Train one network and write its weights; the record."""
    x, y, x_test, y_test = data
    torch.manual_seed(SETTINGS["seed"])
    model, began, batch = NETWORKS[name](), time.time(), SETTINGS["batch"]
    optimiser = torch.optim.Adam(model.parameters())
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE.get(name, 5e-3), total_steps=steps)
    done = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch)[: len(x) // batch]:
            loss = loss_of(name, model, x[rows], y[rows], done / steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            done += 1
    weights = half_weights(model)
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    save_file(weights, WEIGHTS / f"{name}.safetensors")
    attacked = attacked_accuracy(model, x_test[:1000], y_test[:1000], EPSILON, EPSILON / 8, 40)
    return {
        "model": name, "test_accuracy": accuracy(model, x_test, y_test), "epsilon": EPSILON,
        "attacked_accuracy_of_1000": attacked, "epochs": epochs, "seconds": round(time.time() - began, 1),
        **SETTINGS, "torch": str(torch.__version__),
    }  # fmt: skip


def main(data: str, *names: str) -> None:
    """Train each network; write its weights and a record."""
    torch.set_num_threads(1)
    mnist = read_mnist(data)
    for name in names or NETWORKS:
        record = train(name, mnist, 8 if name == "interval" else 5)
        print(record, flush=True)
        (WEIGHTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
