"""From settings to a finished run folder: diagnose, measure, verify, diagnose again."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.analysis.diagnose import Finding, ResultChecks, make_finding, may_fail, probe
from marginattack.core.norms import NORMS
from marginattack.errors import InputError
from marginattack.execution.session import Session, open_session
from marginattack.runs.bound_run import Progress, bound_shards
from marginattack.runs.bound_shard import check_bounds
from marginattack.runs.engines import Engine, FailedShard, Pool
from marginattack.runs.engines.serial import serial_engine
from marginattack.runs.failures import end_process_after, model_errors, name_samples
from marginattack.runs.job import Job, check_labels, open_job, run_preflight
from marginattack.runs.pace import LARGEST, choose_shard
from marginattack.runs.settings import Settings
from marginattack.runs.trace import trace
from marginattack.storage.lock import lock_folder
from marginattack.storage.parquet import read_metadata
from marginattack.storage.paths import StoragePath
from marginattack.storage.run_folder import Part, RunFolder, now

TRACED_SAMPLES = 8  # per part
PROBED_SAMPLES = 32  # per norm, at most
PROBE_QUERIES = 500  # per sample
PROBE_SHARE = 0.01  # of the run's passes, spent on probes
FAIR_BUDGET = 50  # passes; attacks with fewer are not compared with the probe
# Findings that end a run even with --despite-findings.
REFUSED = ("model-fails", "not-a-tensor", "single-logit", "wrong-shape", "labels-outside", "random", "batch-dependent")

_LOG = logging.getLogger(__name__)


def run(
    settings: Settings, out: str | StoragePath, *, progress: Progress, on_finding: Callable[[Finding], None],
    ignore_findings: bool = False, engine: Engine = serial_engine,
) -> RunFolder:  # fmt: skip
    """Measure into a run folder; resume the run if the folder has one with these settings.

    ``on_finding`` is called with each finding of the diagnosis. A grave finding before anything was measured raises
    InputError, unless ``ignore_findings`` is set.
    """
    job = open_job(settings)
    _LOG.info("%d of %d samples of %s on %s", len(job.order), len(job.data), job.data.name, job.model.name)
    if (begun := RunFolder.begun(out)) is not None:
        job = job.resume(begun.manifest)
    RunFolder.check_compatible(out, job.identity())
    if settings.bound is not None:
        check_bounds(job)
    before = diagnose_before(job, on_finding, ignore_findings)
    with open_session(job.make_classifier()) as session:
        check_labels(job, session)
        chosen = choose_shard(job, session) if engine is serial_engine else job.settings.shard or LARGEST
        job = job.with_shards_of(chosen)  # workers elsewhere may be faster than this process
        return _run(job, session, out, before, progress, on_finding, engine)


def _run(
    job: Job, session: Session, out: str | StoragePath, before: list[Finding], progress: Progress,
    on_finding: Callable[[Finding], None], engine: Engine,
) -> RunFolder:  # fmt: skip
    """Everything after the model was frozen and the inputs were checked."""
    with lock_folder(out) as lease:
        folder = RunFolder.create_or_resume(out, job.identity(), job.about(), lease)
        lost = folder.lost(folder.finished())
        folder.begin_session()
        folder.save_findings([asdict(finding) for finding in before])
        with engine(job, folder, session) as pool:
            failed = _measure(job, folder, session.classifier.device, pool, progress)
            with progress("verifying", len(job.order) * len(job.parts)) as advance:
                verified = pool.verify(advance)
            if job.settings.bound is not None:
                failed += bound_shards(job, folder, pool, progress)
        session = session.configure(batch_size=folder.manifest["sessions"][-1]["batch"])
        with end_process_after(job.settings.shard_timeout, lambda: "in the diagnosis of the results"):
            folder.save_traces(_trace_parts(job, folder, session))
            checks, digests, passes = _read_back(folder)
            after = [
                *_report_lost_shards(lost, folder), *_report_failed_shards(failed, folder),
                *_report_failed_rows(verified), *_report_mixed_hardware(folder), *checks.findings(),
                *_probe_parts(job, folder, session, passes),
            ]  # fmt: skip
        for finding in after:
            on_finding(finding)
        folder.save_findings([asdict(finding) for finding in [*before, *after]])
        folder.end_session(digests, verified={**verified, "at": now()}, finished=None if failed else now())
    return folder


def diagnose_before(job: Job, on_finding: Callable[[Finding], None], ignore_findings: bool) -> list[Finding]:
    """Findings before anything was measured; a grave one raises InputError, unless ``ignore_findings`` is set."""
    with end_process_after(job.settings.shard_timeout, lambda: "in the diagnosis before the run"):
        findings = run_preflight(job).findings
    grave = [] if ignore_findings else [finding for finding in findings if finding.grade == "grave"]
    for finding in findings:
        if finding not in grave[:1]:  # the error shows it
            on_finding(finding)
    if grave:
        first = grave[0]
        hint = "" if first.code in REFUSED else "Or measure anyway with --despite-findings. "
        what = f"{first.code}, {first.samples} of {first.of} samples"
        raise InputError(f"nothing was measured: {first.seen}. {first.advice} {hint}({what})")
    return findings


def _measure(job: Job, folder: RunFolder, device: torch.device, pool: Pool, progress: Progress) -> list[FailedShard]:
    """Measure the pending shards as a new session of the manifest, with the batch size of the first session."""
    sessions = folder.manifest["sessions"]
    batch = sessions[0]["batch"] if sessions and not job.settings.batch else pool.choose_batch()
    session = job.session(batch, device)
    _LOG.info("%s, batches of %d, shards of %d", session["hardware"], batch, folder.manifest["shard"])
    folder.update_manifest(sessions=[*sessions, session])
    with progress("measuring", sum(len(folder.shards[shard]) for shard, _ in folder.pending())) as advance:
        failed = pool.measure(batch, advance)
    folder.update_manifest(
        sessions=[*sessions, session | pool.about()], failed_shards=[asdict(each) for each in failed]
    )
    return failed


def _trace_parts(job: Job, folder: RunFolder, session: Session) -> Iterator[tuple[Part, dict[str, list[Any]]]]:
    """Trace each attack on the first few samples that are classified correctly."""
    for part in job.parts:
        columns = _first_correct(folder, part, TRACED_SAMPLES)
        if columns is not None:
            targets = None if job.settings.target is None else columns["target"]
            batch = session.validate(columns["original"], columns["label"], targets, columns["id"])
            attack, norm = job.attacks[part.attack], NORMS[part.norm]
            with model_errors(batch.ids, "while tracing"):
                rows = trace(session, batch, norm, attack, budget=job.settings.budget, seed=job.settings.seed)
            yield part, rows


def _read_back(folder: RunFolder) -> tuple[ResultChecks, dict[tuple[int, Part], str], int]:
    """Check the rows of the finished shards; also return the digests of the shards and the passes they took."""
    checks, digests, passes = ResultChecks(), dict[tuple[int, Part], str](), 0
    for _, group in groupby(folder.read_all(), key=lambda each: each[0]):
        tables = []
        for shard, part, table in group:
            digests[shard, part] = read_metadata(table)["digest"]
            tables.append({name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names})
        columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        checks.add(columns)
        passes += int(columns["forwards"].sum() + columns["backwards"].sum())
    return checks, digests, passes


def _probe_parts(job: Job, folder: RunFolder, session: Session, passes: int) -> Iterator[Finding]:
    """Run the black-box probe against the first attack under each norm, on some samples of its first shard.

    ``passes`` is the number that the run took; the probes may take ``PROBE_SHARE`` of it.
    """
    if job.settings.target is not None or session.randomized is not None:  # it compares single decisions
        return
    if "scale" in job.space or "fixed" in job.space:  # it does not know them
        return
    affordable = max(4, int(PROBE_SHARE * passes / PROBE_QUERIES / len(job.settings.norms)))
    for part in job.parts[: len(job.settings.norms)]:
        columns = _first_correct(folder, part, min(PROBED_SAMPLES, affordable))
        if columns is None or len(columns["id"]) < 4 or may_fail(part.attack):
            continue
        if float((columns["forwards"] + columns["backwards"]).double().median()) < FAIR_BUDGET:
            continue
        batch = session.validate(columns["original"], columns["label"])
        norm = NORMS[part.norm]
        with model_errors(columns["id"], "while probing"):
            finding = probe(session, batch, columns["adversarial"], columns["distance"], norm, seed=job.settings.seed)
        if finding is not None:
            yield finding


def _first_correct(folder: RunFolder, part: Part, count: int) -> dict[str, Tensor] | None:
    """Columns and images of the first finished samples that are classified correctly, if any."""
    found: list[dict[str, Tensor]] = []
    for shard in (shard for shard, each in folder.finished() if each == part):
        columns = folder.numeric_columns(part, shard)
        rows = (columns["label"] == columns["prediction"]).nonzero()[:count, 0]
        if len(rows):
            images = folder.images(part, shard, rows.tolist())
            found.append({name: column[rows] for name, column in columns.items()} | images)
            count -= len(rows)
        if count == 0:
            break
    return {name: torch.cat([each[name] for each in found]) for name in found[0]} if found else None


def _report_lost_shards(lost: list[tuple[int, Part]], folder: RunFolder) -> Iterator[Finding]:
    if lost:
        named = ", ".join(str(folder.file("margins", part, shard)) for shard, part in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        samples = sum(len(folder.shards[shard]) for shard, _ in lost)
        total = folder.manifest["samples"] * len(folder.parts)
        yield make_finding("shards-lost", f"finished shards were gone: {named}{more}", samples, total)


def _report_failed_shards(failed: list[FailedShard], folder: RunFolder) -> Iterator[Finding]:
    if failed:
        named = "; ".join(
            f"{each.attack} {each.norm} shard {each.shard}, {name_samples(each.ids)} ({each.error})"
            for each in failed[:5]
        )
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        samples = sum(len(folder.shards[each.shard]) for each in failed)
        total = folder.manifest["samples"] * len(folder.parts)
        yield make_finding("shards-set-aside", f"shards failed repeatedly: {named}{more}", samples, total)


def _report_failed_rows(verified: dict[str, int]) -> Iterator[Finding]:
    rows, failed = verified["rows"], verified["failed"]
    if failed:
        yield make_finding("stored-rows-fail", f"{failed} of {rows} stored rows fail the verification", failed, rows)


def _report_mixed_hardware(folder: RunFolder) -> Iterator[Finding]:
    kinds = {(session["hardware"], session.get("torch", "unknown")) for session in folder.manifest["sessions"]}
    if len(kinds) > 1:
        seen = "sessions ran on " + "; ".join(sorted(f"{hardware} with torch {version}" for hardware, version in kinds))
        yield make_finding("mixed-conditions", seen, 0, folder.manifest["samples"])
