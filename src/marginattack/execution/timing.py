"""How long passes take, from a few of them: what is expected of a measurement."""

import time

import torch
from torch import Tensor

from marginattack.execution.memory import fitting_batch_size
from marginattack.execution.session import Session

PASSES = 400  # per sample, where neither the budget nor the attack states them
BATCH = {"cpu": 32, "cuda": 128}  # of the passes that are timed
PATIENCE = 1.5  # seconds for which they are timed


def expected_passes(attack: object, budget: int | None) -> int:
    """The passes per sample, as far as they are known."""
    stated: int = getattr(attack, "passes", PASSES)
    return stated if budget is None else budget


def seconds_per_pass(session: Session, image: Tensor, patience: float = PATIENCE) -> float:
    """What a forward or a backward pass takes for each sample of a batch, from this image as a batch of one."""
    kind = session.classifier.device.type
    largest = min(BATCH.get(kind, BATCH["cpu"]), fitting_batch_size(session, image[0]))
    _time(session, image)  # the first pass also prepares the model
    size, seconds, began = 1, _time(session, image), time.perf_counter()
    while size < largest and time.perf_counter() - began + 12 * seconds < patience:
        size = min(4 * size, largest)
        seconds = min(_time(session, image.expand(size, *image.shape[1:])) for _ in range(3))  # others may be busy
    return max(seconds / size / 2, 1e-9)


def describe_estimate(seconds: float) -> str:
    """What is said at the start."""
    about = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
    return f"about {about}, by the time of a few passes"


def _time(session: Session, images: Tensor) -> float:
    """The seconds of a forward and a backward pass."""
    began, points = time.perf_counter(), images.to(session.classifier.device).contiguous().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(session.evaluator().logits(points).sum(), points)
    gradient.sum().item()  # waits for the device
    return time.perf_counter() - began
