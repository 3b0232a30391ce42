"""Bounds for all shards of a run, during the run or afterwards."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from math import ceil
from typing import Any, TypeAlias

from marginattack.errors import InputError
from marginattack.execution.session import open_session
from marginattack.runs.bound_shard import CERTIFYING, SECONDS, bound_settings, check_bounds
from marginattack.runs.engines import Engine, FailedShard, Pool
from marginattack.runs.engines.serial import serial_engine
from marginattack.runs.job import Job, open_job
from marginattack.runs.pace import NOTICE
from marginattack.runs.settings import Settings, read_settings
from marginattack.sources.models import find_form
from marginattack.storage.bounds import begin_bounds, end_bounds, open_bounds
from marginattack.storage.lock import lock_folder
from marginattack.storage.manifest import FORMAT
from marginattack.storage.paths import StoragePath
from marginattack.storage.run_folder import Part, RunFolder, differences

# (phase, number of samples) ↦ a context whose value is called with the number of samples done
Progress: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
_LOG = logging.getLogger(__name__)


def bound_run(
    out: str | StoragePath, flags: dict[str, Any], *, progress: Progress, engine: Engine = serial_engine
) -> RunFolder:
    """Bound the margins of a stored run, shard by shard.

    Shards with bounds of the same settings are skipped; bounds of other settings are refined.

    ``flags`` are settings by dotted name that take precedence over those of the run: ``bound`` and its options, the
    present location of the model and data, and how to compute.
    """
    folder = RunFolder(out)
    job = open_job(_read_settings(folder, flags)).with_shards_of(folder.manifest["shard"])
    both = (folder.manifest["identity"], job.identity())
    stored, found = ({name: each[name] for name in ("model", "data")} for each in both)
    if changed := differences(stored, found):
        raise InputError(f"{out} was measured with another model or other data ({changed}): give the same ones")
    check_bounds(job)
    with open_session(job.make_classifier()) as session, lock_folder(out) as lease:
        folder = RunFolder(out, lease)
        batch, earlier = folder.manifest["sessions"][-1]["batch"], folder.manifest["sessions"]
        folder.update_manifest(sessions=[*earlier, job.session(batch, session.classifier.device)])
        with engine(job, folder, session) as pool:
            bound_shards(job, folder, pool, progress)
            folder.update_manifest(sessions=[*earlier, folder.manifest["sessions"][-1] | pool.about()])
    return folder


def bound_shards(job: Job, folder: RunFolder, pool: Pool, progress: Progress) -> list[FailedShard]:
    """Bound the finished shards without bounds of these settings; return those that could not be bounded."""
    begin_bounds(folder, bound_settings(job))
    total = sum(len(folder.shards[shard]) for shard, _ in open_bounds(folder, bound_settings(job)))
    if total and job.settings.bound in CERTIFYING:
        _LOG.log(NOTICE, _announce(total, job.settings.time_limit or SECONDS, job.settings.restarts))
    with progress("bounding", total) as advance:
        failed = pool.bound(folder.manifest["sessions"][-1]["batch"], advance)
    finished, earlier = set(folder.finished()), folder.manifest.get("failed_shards", [])
    unmeasured = [each for each in earlier if (each["shard"], Part(each["attack"], each["norm"])) not in finished]
    folder.update_manifest(failed_shards=[*unmeasured, *(asdict(each) for each in failed)])
    end_bounds(folder)
    return failed


def _announce(total: int, each: float, restarts: int) -> str:
    """The message at the start, since progress is shown shard by shard."""
    seconds = total * each
    most = f"{seconds:.0f} s" if seconds < 100 else f"{ceil(seconds / 60):,} min"
    again = f", besides {restarts} × the time of the attack (--restarts)" if restarts else ""
    return f"bounding {total:,} margins, at most {each:g} s each: up to {most} (--time-limit){again}"


def _read_settings(folder: RunFolder, flags: dict[str, Any]) -> Settings:
    """The settings of a stored run, some replaced. A run folder may come from someone else: it cannot grant trust."""
    if folder.manifest["format"] != FORMAT:
        stated = f"{folder.path} has run format {folder.manifest['format']}, this version writes {FORMAT}"
        raise InputError(f"{stated}: measure again to bound its margins; reports can still read it")
    stored, given = folder.manifest["settings"], {name: value for name, value in flags.items() if value is not None}
    source = stored["model"]["source"]
    if "model" not in given and find_form(source).endswith(":factory"):
        raise InputError(f"{folder.path} names Python code as its model, which only you can run: add --model {source}")
    if stored["model"]["trust_pickle"] and not given.get("model.trust_pickle"):
        raise InputError(f"{folder.path} was measured with --trust-pickle: add it if you trust {source}")
    for name in ("model", "data"):
        if name in given:
            given[f"{name}.source"] = given.pop(name)
    return read_settings(
        None, [], {**stored, "bound": None, "time_limit": None, "radius": None, "restarts": 0, **given}
    )
