"""The expected time of a run, and the number of samples per shard, chosen so that a shard takes a few seconds."""

import logging

from marginattack.execution import timing
from marginattack.execution.session import Session
from marginattack.execution.timing import describe_estimate, expected_passes
from marginattack.runs.job import Job

SHARD = {"cpu": 8.0, "cuda": 20.0}  # seconds: progress is shown, and results are stored, shard by shard
PASS = 0.01  # seconds per pass of an efficient batch, at least: long compared with the attack's own computations
LARGEST = 512
ANNOUNCED = 5.0  # seconds; longer runs print the expected time at the start
NOTICE = 25  # log level of messages shown unless --quiet, between logging.INFO and logging.WARNING
_LOG = logging.getLogger(__name__)


def choose_shard(job: Job, session: Session) -> int:
    """Time a few passes, announce the expected time of the run, and return the number of samples per shard.

    Unless the settings state it, it is a power of two that takes about ``SHARD`` seconds, but at least fills a batch.
    """
    try:
        each = seconds_per_pass(job, session)
    except Exception:  # a model that fails will fail again when measured, with an error that names the samples
        return job.settings.shard or LARGEST
    passes = {name: expected_passes(attack, job.settings.budget) for name, attack in job.attacks.items()}
    seconds = each * sum(passes.values()) * len(job.settings.norms) * len(job.order)
    if seconds > ANNOUNCED:
        _LOG.log(NOTICE, describe_estimate(seconds))
    affordable = SHARD.get(session.classifier.device.type, SHARD["cpu"]) / (each * max(passes.values()))
    wanted = int(min(LARGEST, max(1.0, affordable, PASS / each)))
    return job.settings.shard or 1 << (wanted.bit_length() - 1)


def seconds_per_pass(job: Job, session: Session) -> float:
    """The time of a forward or backward pass per sample of a batch."""
    _, images, labels = job.samples([0])
    return timing.seconds_per_pass(session, session.validate(images, labels).images)
