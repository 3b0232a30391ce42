"""What the training scripts share: attacks, CUDA graphs, averaged weights, and the record that is kept of a run."""

import copy
import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

ZOO = Path(__file__).parents[2] / "src/marginattack/sources/zoo"
LOGS = Path(__file__).parent / "logs"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def rounded(model: nn.Module) -> dict[str, Tensor]:
    """The weights as they are stored: half precision, but for the running statistics."""
    return {
        key: (value.half() if value.is_floating_point() and "running" not in key else value).cpu().contiguous()
        for key, value in model.state_dict().items()
    }


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    batches = zip(images.split(2500), labels.split(2500), strict=True)
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in batches) / len(labels)


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong logit less the right one, summed."""
    right = nn.functional.one_hot(labels, logits.shape[1]).bool()
    return (logits.masked_fill(right, -torch.inf).amax(1) - logits[right]).sum()


def entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
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
        standing = model(x).argmax(1) == y
        for loss in (entropy_loss, margin_loss) * restarts:
            standing &= model(pgd(model, x, y, epsilon, step, steps, loss)).argmax(1) == y
        survivors += int(standing.sum())
    return survivors / len(labels)


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


def graphed(step: Callable[[], None]) -> Callable[[], Any]:
    """The step as one CUDA graph: a small network's many kernels then start without waiting for Python.

    The three calls that CUDA wants before a capture are made here and are real steps. Without CUDA: the step itself.
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
    """The learning rate: up in a straight line, then down to nothing by a half cosine."""
    if progress < warm:
        return peak * (0.02 + 0.98 * progress / warm)
    return peak * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * (progress - warm) / (1 - warm)))))


def epochs_of_rows(n: int, batch: int, epochs: int) -> Iterable[tuple[int, Tensor]]:
    """Epoch by epoch, all rows in random order, batch by batch; what does not fill a batch is left out."""
    for epoch in range(epochs):
        for rows in torch.randperm(n, device=DEVICE)[: n // batch * batch].view(-1, batch):
            yield epoch, rows


class Record:
    """What a run says of itself: printed, and kept as JSON, in $OUT or experiments/train/logs."""

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
        """Write the weights, rounded, and the record; `final` are accuracies of the rounded network."""
        self.content["seconds"] = round(time.time() - self.began, 1)
        self.content |= final
        if final:
            print(self.name, "final", *(f"{k} {v:.4f}" for k, v in final.items()), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file(rounded(model), self.folder / f"{self.name}.safetensors")
        logs = self.folder if os.environ.get("OUT") else LOGS
        (logs / f"{self.name}.json").write_text(json.dumps(self.content, indent=1) + "\n")
