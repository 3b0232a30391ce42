"""Train the benchmark suite's own networks, mnist-gelu and mnist-kwta, on the 60,000 training digits.

    PYTHONPATH=benchmarks python experiments/train/suite_networks.py mnist.npz [NAME ...]

Adam, one-cycle learning rate, seed fixed; about two minutes a network on one CPU core. The weights are rounded to half
precision, and the accuracy that is printed and kept in benchmarks/networks is that of the rounded network.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from networks import NETWORKS, WEIGHTS
from safetensors.torch import save_file
from torch import Tensor, nn

EPOCHS, BATCH, PEAK_RATE, SEED = 4, 128, 3e-3, 0


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    pairs = zip(images.split(1000), labels.split(1000), strict=True)
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs) / len(labels)


def train(name: str, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> None:
    """One network: its weights and a record beside them."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model, began = NETWORKS[name](), time.time()
    steps = EPOCHS * (len(x) // BATCH)
    optimiser = torch.optim.Adam(model.parameters(), lr=PEAK_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(x), generator=generator).split(BATCH)[: len(x) // BATCH]:
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"{name}: epoch {epoch}, test accuracy {accuracy(model.eval(), x_test, y_test):.2%}", flush=True)
    weights = {key: value.half() for key, value in model.state_dict().items()}
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    record = {
        "model": name, "test_accuracy": accuracy(model, x_test, y_test), "seconds": round(time.time() - began, 1),
        "epochs": EPOCHS, "batch": BATCH, "peak_rate": PEAK_RATE, "seed": SEED, "torch": str(torch.__version__),
    }  # fmt: skip
    print(record, flush=True)
    WEIGHTS.mkdir(exist_ok=True)
    save_file(weights, WEIGHTS / f"{name}.safetensors")
    Path(WEIGHTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def main(data: str, *names: str) -> None:
    with np.load(data) as arrays:
        x, y, x_test, y_test = (torch.from_numpy(arrays[k]) for k in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test = (images.unsqueeze(1).float() / 255 for images in (x, x_test))
    for name in names or NETWORKS:
        train(name, x, y.long(), x_test, y_test.long())


if __name__ == "__main__":
    main(*sys.argv[1:])
