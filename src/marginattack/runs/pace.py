"""How long a run takes, and how many samples a shard should have: what is computed in some seconds."""

import logging

from marginattack.execution import timing
from marginattack.execution.session import Session
from marginattack.execution.timing import describe_estimate, expected_passes
from marginattack.runs.job import Job

SHARD = {"cpu": 8.0, "cuda": 20.0}  # seconds: progress is shown, and results are stored, shard by shard
PASS = 0.01  # seconds that a pass of an efficient batch takes at least: an attack's own steps are short next to it
LARGEST = 512
ANNOUNCED = 5.0  # seconds, above which the expected time is told at the start
NOTICE = 25  # the level of what is said unless --quiet: between logging.INFO and logging.WARNING
_LOG = logging.getLogger(__name__)


def choose_shard(job: Job, session: Session) -> int:
    """Announce the time of the run, by the time of a few passes; the samples of a shard, unless they are stated.

    They are a power of two that takes about ``SHARD`` seconds, but no fewer than fill a batch.
    """
    try:
        each = seconds_per_pass(job, session)
    except Exception:  # a model that fails does so again when it is measured, where the error names the samples
        return job.settings.shard or LARGEST
    passes = {name: expected_passes(attack, job.settings.budget) for name, attack in job.attacks.items()}
    seconds = each * sum(passes.values()) * len(job.settings.norms) * len(job.order)
    if seconds > ANNOUNCED:
        _LOG.log(NOTICE, describe_estimate(seconds))
    affordable = SHARD.get(session.classifier.device.type, SHARD["cpu"]) / (each * max(passes.values()))
    wanted = int(min(LARGEST, max(1.0, affordable, PASS / each)))
    return job.settings.shard or 1 << (wanted.bit_length() - 1)


def seconds_per_pass(job: Job, session: Session) -> float:
    """What a forward or a backward pass takes for each sample of a batch."""
    _, images, labels = job.samples([0])
    return timing.seconds_per_pass(session, session.validate(images, labels).images)
