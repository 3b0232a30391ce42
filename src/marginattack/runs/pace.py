"""How many samples a shard should have: what is computed in some seconds, from the time of a few passes."""

import logging
import time

import torch
from torch import Tensor

from marginattack.execution.memory import fitting_batch_size
from marginattack.execution.session import Session
from marginattack.runs.job import Job

SHARD = {"cpu": 8.0, "cuda": 20.0}  # seconds: progress is shown, and results are stored, shard by shard
PASS = 0.01  # seconds that a pass of an efficient batch takes at least: an attack's own steps are short next to it
PASSES = 400  # per sample, where neither the budget nor the attack states them
BATCH = {"cpu": 32, "cuda": 128}  # of the passes that are timed
PATIENCE = 1.5  # seconds for which they are timed
LARGEST = 512
ANNOUNCED = 0.5  # minutes, above which the expected time is told at the start
NOTICE = 25  # the level of what is said unless --quiet: between logging.INFO and logging.WARNING
_LOG = logging.getLogger(__name__)


def choose_shard(job: Job, session: Session) -> int:
    """The number of samples, a power of two, that takes about ``SHARD`` seconds, but no fewer than fill a batch."""
    try:
        each = seconds_per_pass(job, session)
    except Exception:  # a model that fails does so again when it is measured, where the error names the samples
        return LARGEST
    passes = job.settings.budget or max(getattr(attack, "passes", PASSES) for attack in job.attacks.values())
    minutes = each * passes * len(job.order) * len(job.parts) / 60
    if minutes > ANNOUNCED:
        _LOG.log(NOTICE, "about %.1f min, by the time of a few passes", minutes)
    affordable = SHARD.get(session.classifier.device.type, SHARD["cpu"]) / (each * passes)
    wanted = int(min(LARGEST, max(1.0, affordable, PASS / each)))
    return 1 << (wanted.bit_length() - 1)


def seconds_per_pass(job: Job, session: Session) -> float:
    """What a forward or a backward pass takes for each sample of a batch."""
    _, images, labels = job.samples([0])
    image, kind = session.validate(images, labels).images, session.classifier.device.type
    largest = min(BATCH.get(kind, BATCH["cpu"]), fitting_batch_size(session, image[0]))
    _time(session, image)  # the first pass also prepares the model
    size, seconds, began = 1, _time(session, image), time.perf_counter()
    while size < largest and time.perf_counter() - began + 12 * seconds < PATIENCE:
        size = min(4 * size, largest)
        seconds = min(_time(session, image.expand(size, *image.shape[1:])) for _ in range(3))  # others may be busy
    return max(seconds / size / 2, 1e-9)


def _time(session: Session, images: Tensor) -> float:
    """The seconds of a forward and a backward pass."""
    began, points = time.perf_counter(), images.to(session.classifier.device).contiguous().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(session.evaluator().logits(points).sum(), points)
    gradient.sum().item()  # waits for the device
    return time.perf_counter() - began
