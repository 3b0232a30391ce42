"""From settings to a finished run folder: diagnose, execute, read back and check, diagnose again."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from marginattack.analysis.diagnose import MAY_FAIL, Finding, check_results, make_finding, probe
from marginattack.core.classifier import Classifier
from marginattack.core.norms import NORMS
from marginattack.errors import InputError
from marginattack.runs.engines import Engine, SetAside
from marginattack.runs.engines.serial import in_this_process
from marginattack.runs.job import Job, check_labels, examine, open_job
from marginattack.runs.settings import Settings
from marginattack.runs.trace import trace
from marginattack.storage.run_folder import Part, Store, locked, now

TRACED = 8  # samples of a part whose moves are kept
PROBED = 32  # samples of a part that the black-box probe looks at, at most
QUERIES = 500  # of the probe, a sample
FAIR = 50  # passes that an attack must have had to be held against the probe
PROBE_SHARE = 0.01  # of the run's passes that the probes may cost

# (what, how much there is) ↦ a context whose value is told how much was done
Progress: TypeAlias = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def run(
    settings: Settings, out: str | os.PathLike[str], *, progress: Progress, tell: Callable[[Finding], None],
    despite: bool = False, engine: Engine = in_this_process,
) -> Store:  # fmt: skip
    """Measure what the settings say, into the folder; go on where an earlier run of the same settings stopped.

    ``tell`` hears each finding. A grave one before anything was measured ends the run, unless ``despite`` is set.
    """
    job = open_job(settings)
    Store.compatible(out, job.identity())
    before = examine(job)
    for finding in before:
        tell(finding)
    grave = [finding for finding in before if finding.grade == "grave"]
    if grave and not despite:
        hint = "mend it, or go on all the same with --despite-findings"
        raise InputError(f"nothing was measured, for {grave[0].code}: {grave[0].seen}; {hint}")
    classifier = Classifier(job.model.module, bounds=(0.0, 1.0), search=settings.search, compiled=settings.compiled)
    check_labels(job, classifier)
    with locked(out):
        store = Store.begin(out, job.identity(), job.about())
        store.note([asdict(finding) for finding in before])
        sessions = store.manifest["sessions"]
        with engine(job, store, classifier) as pool:
            batch = sessions[0]["batch"] if sessions and not settings.batch else pool.batch()
            classifier.chunk = batch
            store.update(sessions=[*sessions, job.session(batch, classifier.device)])
            with progress("measuring", sum(len(store.shards[shard]) for shard, _ in store.pending())) as advance:
                aside = pool.measure(batch, advance)
            session = store.manifest["sessions"][-1] | pool.about()
            store.update(sessions=[*sessions, session], set_aside=[asdict(each) for each in aside])
            with progress("checking", len(job.order) * len(job.parts)) as advance:
                verified = pool.check(advance)
        store.keep_traces(_traces(job, store, classifier))
        after = [
            *_aside(aside, store), *_failed(verified), *_mixed(store), *check_results(store.columns()),
            *_probes(job, store, classifier),
        ]  # fmt: skip
        for finding in after:
            tell(finding)
        store.note([asdict(finding) for finding in [*before, *after]])
        store.update(verified={**verified, "at": now()}, finished=None if aside else now())
    return store


def _traces(job: Job, store: Store, classifier: Classifier) -> Iterator[tuple[Part, dict[str, list[Any]]]]:
    """What each attack did to the first few samples that are classified rightly."""
    for part in job.parts:
        shard = store.first(part)
        if shard is None:
            continue
        columns, images = store.numbers(part, shard), store.images(part, shard)
        rows = (columns["label"] == columns["prediction"]).nonzero()[:, 0][:TRACED]
        if len(rows) == 0:
            continue
        targets = None if job.settings.target is None else columns["target"][rows]
        with classifier.held():
            x, y, a = classifier.accept(images["original"][rows], columns["label"][rows], targets)
            yield part, trace(
                classifier, x, y, NORMS[part.norm], job.attacks[part.attack], budget=job.settings.budget, targets=a,
                seed=job.settings.seed, ids=images["id"][rows],
            )  # fmt: skip


def _aside(aside: list[SetAside], store: Store) -> Iterator[Finding]:
    """Shards that failed whatever was tried."""
    if aside:
        named = "; ".join(f"{each.attack} {each.norm} shard {each.shard} ({each.error})" for each in aside[:5])
        more = f" and {len(aside) - 5} more" if len(aside) > 5 else ""
        samples = sum(len(store.shards[each.shard]) for each in aside)
        total = store.manifest["samples"] * len(store.parts)
        yield make_finding("shards-set-aside", f"shards failed again and again: {named}{more}", samples, total)


def _failed(verified: dict[str, int]) -> Iterator[Finding]:
    """Rows that are not what they say."""
    rows, failed = verified["rows"], verified["failed"]
    if failed:
        seen = f"{failed} of {rows} stored rows do not hold when read back and checked"
        yield make_finding("stored-rows-fail", seen, failed, rows)


def _mixed(store: Store) -> Iterator[Finding]:
    """Shards that were made under other conditions than the first."""
    kinds = {(session["hardware"], session["torch"]) for session in store.manifest["sessions"]}
    if len(kinds) > 1:
        seen = "sessions ran on " + "; ".join(sorted(f"{hardware} with torch {torch}" for hardware, torch in kinds))
        yield make_finding("mixed-conditions", seen, 0, store.manifest["samples"])


def _probes(job: Job, store: Store, classifier: Classifier) -> Iterator[Finding]:
    """The black-box probe, against the first attack under each norm, on some samples of the first shard."""
    table = store.table(["forwards", "backwards"])
    passes = sum(int(np.sum(table.column(name).to_numpy())) for name in table.column_names)
    room = max(4, int(PROBE_SHARE * passes / QUERIES / len(job.settings.norms)))
    if job.settings.target is not None:
        return
    wanted = [part for part in job.parts[: len(job.settings.norms)] if part.attack not in MAY_FAIL]
    for part in wanted:
        shard = store.first(part)
        if shard is None:
            continue
        images, column = store.images(part, shard), store.numbers(part, shard)
        rows = (column["label"] == column["prediction"]).nonzero()[:, 0][: min(PROBED, room)]
        spent = (column["forwards"] + column["backwards"])[rows]
        if len(rows) < 4 or float(spent.double().median()) < FAIR:
            continue
        with classifier.held():
            x, y, _ = classifier.accept(images["original"][rows], column["label"][rows])
            finding = probe(
                classifier, x, y, images["adversarial"][rows], column["distance"][rows], NORMS[part.norm],
                seed=job.settings.seed,
            )  # fmt: skip
        if finding is not None:
            yield finding
