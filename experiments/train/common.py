"""Shared by the training scripts: data, attacks, CUDA graphs, averaged weights, and the record of a run."""

import copy
import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

ZOO = Path(__file__).parents[2] / "src/marginattack/sources/zoo"
LOGS = Path(__file__).parent / "logs"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def half_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights as they are stored: in half precision, except the running statistics."""
    return {
        key: (value.half() if value.is_floating_point() and "running" not in key else value).cpu().contiguous()
        for key, value in model.state_dict().items()
    }


def read_mnist(path: str, limit: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images in [0, 1] and labels, test images and labels."""
    with np.load(path) as arrays:
        x, y, x_test, y_test = (torch.from_numpy(arrays[k][:limit]) for k in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test = (images.unsqueeze(1).float() / 255 for images in (x, x_test))
    return x, y.long(), x_test, y_test.long()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of correctly classified images."""
    model.eval()
    batches = zip(images.split(2500), labels.split(2500), strict=True)
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in batches) / len(labels)


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The highest wrong logit minus the correct one, summed."""
    right = nn.functional.one_hot(labels, logits.shape[1]).bool()
    return (logits.masked_fill(right, -torch.inf).amax(1) - logits[right]).sum()


def entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, summed."""
    return cross_entropy(logits, labels, reduction="sum")


def pgd(
    logits: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    epsilon: Tensor | float,
    step: Tensor | float,
    steps: int,
    loss: Callable[[Tensor, Tensor], Tensor] = entropy_loss,
) -> Tensor:
    """Projected gradient ascent by signs inside the ℓ∞ ball and the box [0, 1], from a random start (Madry et al.)."""
    low, high = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=1)
    x = torch.clamp(images + epsilon * (2 * torch.rand_like(images) - 1), low, high)
    for _ in range(steps):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(logits(x).float(), labels), x)
        x = torch.clamp(x.detach() + step * gradient.sign(), low, high)
    return x


def attacked_accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, step: float, steps: int, restarts: int = 1
) -> float:
    """The share that survives every restart of PGD, on cross-entropy and on the margin loss."""
    model.eval()
    survivors = 0
    for x, y in zip(images.split(5000), labels.split(5000), strict=True):
        correct = model(x).argmax(1) == y
        for loss in (entropy_loss, margin_loss) * restarts:
            correct &= model(pgd(model, x, y, epsilon, step, steps, loss)).argmax(1) == y
        survivors += int(correct.sum())
    return survivors / len(labels)


def train_with_adam(
    make_model: Callable[[], nn.Module], data: tuple[Tensor, Tensor, Tensor, Tensor], *, name: str, epochs: int,
    batch: int, peak_rate: float, seed: int, epsilon: float = 0.0, growth: float = 0.0,
    augment: Callable[[Tensor, torch.Generator], Tensor] = lambda x, _: x,
) -> tuple[dict[str, Tensor], float]:  # fmt: skip
    """Train on the CPU with a one-cycle learning rate; the weights in half precision, and their test accuracy.

    With ``epsilon``, against five steps of PGD at this radius in ℓ∞, which grows over a share ``growth`` of the steps.
    """
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, began = make_model(), time.time()
    optimiser = torch.optim.Adam(model.parameters(), lr=peak_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, peak_rate, total_steps=epochs * (len(x) // batch))
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(x), generator=generator).split(batch)[: len(x) // batch]:
            images = augment(x[rows], generator)
            if epsilon:
                radius = epsilon * min(1.0, schedule.last_epoch / max(1.0, growth * epochs * (len(x) // batch)))
                images = pgd(model, images, y[rows], radius, radius / 2, 5)
            loss = cross_entropy(model(images), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        test = accuracy(model, x_test, y_test)
        print(f"{name}: epoch {epoch}, test accuracy {test:.2%}, {time.time() - began:.0f} s", flush=True)
    weights = half_weights(model)
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    return weights, accuracy(model, x_test, y_test)


class Average:
    """An exponential moving average of a network's weights and running statistics."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False).eval(), decay
        self.pairs = [
            (mine, theirs)
            for mine, theirs in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True)
            if mine.is_floating_point()
        ]

    @torch.no_grad()
    def update(self) -> None:
        mine, theirs = zip(*self.pairs, strict=True)
        torch._foreach_lerp_(list(mine), list(theirs), 1 - self.decay)


def capture(step: Callable[[], None]) -> Callable[[], Any]:
    """The step as a CUDA graph, which saves the launch time of a small network's many kernels; without CUDA the step.

    The three warm-up calls that a capture needs are real steps.
    """
    if DEVICE == "cpu":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def one_cycle(progress: float, peak: float, warm: float = 0.15) -> float:
    """The learning rate: a linear warm-up, then a half cosine down to 0."""
    if progress < warm:
        return peak * (0.02 + 0.98 * progress / warm)
    return peak * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * (progress - warm) / (1 - warm)))))


def epochs_of_rows(n: int, batch: int, epochs: int) -> Iterable[tuple[int, Tensor]]:
    """Batches of rows in random order with their epoch; the incomplete last batch of an epoch is dropped."""
    for epoch in range(epochs):
        for rows in torch.randperm(n, device=DEVICE)[: n // batch * batch].view(-1, batch):
            yield epoch, rows


class Record:
    """The log of a training run: printed, and saved as JSON in $OUT or experiments/train/logs."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name, self.folder, self.began = name, Path(os.environ.get("OUT") or ZOO), time.time()
        self.content: dict[str, Any] = {
            "model": name,
            "settings": settings,
            "hardware": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
            "torch": torch.__version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "epochs": [],
        }

    def epoch(self, **values: float) -> None:
        self.content["epochs"].append({"seconds": round(time.time() - self.began, 1)} | values)
        print(self.name, *(f"{k} {v:.4g}" for k, v in self.content["epochs"][-1].items()), flush=True)

    def save(self, model: nn.Module, **final: float) -> None:
        """Write the weights in half precision, and the log; `final` are accuracies of the rounded network."""
        self.content["seconds"] = round(time.time() - self.began, 1)
        self.content |= final
        if final:
            print(self.name, "final", *(f"{k} {v:.4f}" for k, v in final.items()), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file(half_weights(model), self.folder / f"{self.name}.safetensors")
        logs = self.folder if os.environ.get("OUT") else LOGS
        (logs / f"{self.name}.json").write_text(json.dumps(self.content, indent=1) + "\n")
