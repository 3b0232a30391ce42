"""Many shards at a time, on a Ray cluster of any size.

A pool of actors, each with the model, each with one shard at a time: whoever is free gets the next, so a slow shard
holds back nobody else. Workers commit what they computed themselves; the driver hears that it is done, and holds
nothing that grows with the samples. A worker that is lost is started again, and what it had goes back into the queue:
a shard that is computed twice is the same file. One that failed ``TRIES`` times is set aside.
"""

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marginattack.core.classifier import Classifier
from marginattack.errors import InputError, describe, one_line
from marginattack.runs.engines import Pool, SetAside
from marginattack.runs.engines.ray_start import connected
from marginattack.runs.job import Job
from marginattack.storage.paths import Address, is_full
from marginattack.storage.run_folder import Part, Store

TRIES = 3
TICK = 0.5  # seconds after which the driver looks up, if nothing happens


class Task(NamedTuple):
    """A method of a worker and its arguments."""

    method: str
    shard: int = -1
    part: Part | None = None
    batch: int = 0

    def arguments(self) -> tuple[Any, ...]:
        return () if self.part is None else (self.shard, self.part.attack, self.part.norm, self.batch)


@dataclass(kw_only=True)
class Cluster:
    """The engine: a cluster that is there (``address``), or one of this machine's that lasts as long as the run."""

    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    alive: int = field(default=0, init=False)
    retried: int = field(default=0, init=False)

    @contextmanager
    def __call__(self, job: Job, store: Store, classifier: Classifier) -> Iterator[Pool]:
        if job.settings.device not in (None, "cpu", "cuda"):
            raise InputError(
                f"--device {job.settings.device} means nothing on a cluster: say cuda or cpu, or leave it out"
            )
        try:
            with connected(self.address, self.workers, self.gpus, job.settings.device) as (ray, workers, gpus):
                crew = Crew(ray, self, job, store, workers, gpus)
                try:
                    yield crew
                finally:
                    crew.dismiss()
        finally:
            store.sweep()  # what the workers that were lost or dismissed had begun

    def note(self) -> str:
        """How it is going, for a progress bar."""
        workers = f"{self.alive} worker{'' if self.alive == 1 else 's'}"
        return f"{workers}, {self.retried} retried" if self.retried else workers


class Crew(Pool):
    """The workers of one run."""

    def __init__(self, ray: Any, cluster: Cluster, job: Job, store: Store, workers: int, gpus: float) -> None:
        from marginattack.runs.engines.worker import Worker

        self.ray, self.cluster, self.job, self.store = ray, cluster, job, store
        # retries of an actor make its calls wait while it is started again; those of a call, below, are ours to count
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)(Worker)
        device = job.settings.device or ("cuda" if gpus else "cpu")  # a GPU that torch does not see is no CPU
        arguments = (
            job.settings.model_copy(update={"device": device}).model_dump_json(),
            os.fspath(store.path if _remote(store) else store.path.absolute()),
            os.getcwd(), json.dumps(job.identity()), store.manifest["started"],
        )  # fmt: skip
        self.actors = [remote.remote(*arguments) for _ in range(workers)]
        self.busy: dict[Any, tuple[int, Task]] = {}  # what is under way, and with whom
        self.idle: list[int] = []
        self.tries: Counter[Any] = Counter()  # of tasks and of workers that failed; nothing else is in it
        self.hardware: Counter[str] = Counter()
        self.seconds = self.shards = 0.0
        self.chosen = 0
        for worker in range(workers):
            self._give(worker, Task("open"))

    def batch(self) -> int:
        if self.job.settings.batch is not None:
            return self.job.settings.batch
        for _, result in self._spread([Task("batch")], lambda task, error: _refuse(error)):
            return int(result)
        raise AssertionError("a task ends with a result or a refusal")

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[SetAside]:
        aside: list[SetAside] = []
        self.chosen = batch

        def give_up(task: Task, error: str) -> None:
            assert task.part is not None
            aside.append(SetAside(shard=task.shard, attack=task.part.attack, norm=task.part.norm, error=error))

        tasks = (Task("measure", shard, part, batch) for shard, part in self.store.pending())
        for task, seconds in self._spread(tasks, give_up, lambda: progress(0)):
            self.seconds, self.shards = self.seconds + seconds, self.shards + 1
            progress(self._size(task))
        if aside and not self.store.finished():
            _refuse(f"every shard failed: {aside[0].error}")
        return aside

    def check(self, progress: Callable[[int], None]) -> dict[str, int]:
        rows = failed = 0
        tasks = (Task("check", shard, part, self.chosen) for shard, part in self.store.finished())
        for task, found in self._spread(tasks, lambda task, error: _refuse(error), lambda: progress(0)):
            rows, failed = rows + found[0], failed + found[1]
            progress(self._size(task))
        return {"rows": rows, "failed": failed}

    def about(self) -> dict[str, Any]:
        words = "; ".join(sorted(self.hardware)) or "no worker was needed"
        seconds = round(self.seconds / self.shards, 3) if self.shards else None
        return {"engine": "ray", "workers": len(self.actors), "hardware": words, "retried": self.cluster.retried,
                "seconds_a_shard": seconds}  # fmt: skip

    def dismiss(self) -> None:
        """End every worker, also one that hangs."""
        for actor in self.actors:
            self.ray.kill(actor, no_restart=True)

    def _spread(
        self, tasks: Iterable[Task], give_up: Callable[[Task, str], None], tick: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Task, Any]]:
        """Give each task to whoever is free, until all are done or given up."""
        queue = deque(tasks)
        while queue or any(task.method != "open" for _, task in self.busy.values()):
            while queue and self.idle:
                self._give(self.idle.pop(), queue.popleft())
            done, _ = self.ray.wait(list(self.busy), num_returns=1, timeout=TICK)
            self.store.still_ours()
            for reference in done:
                worker, task = self.busy.pop(reference)
                try:
                    result = self.ray.get(reference)
                except self.ray.exceptions.RayTaskError as error:
                    self.idle.append(worker)
                    reason = self._reason(task, error.cause)
                    self._again(queue, task, reason, give_up)
                except self.ray.exceptions.RayError as error:
                    self._lost(worker, task, _cause(error))
                    self._again(queue, task, f"its worker was lost: {_cause(error)}", give_up)
                else:
                    self.idle.append(worker)
                    if task.method == "open":
                        self._joined(worker, result)
                    else:
                        yield task, result
            tick()

    def _give(self, worker: int, task: Task) -> None:
        method = getattr(self.actors[worker], task.method).options(max_task_retries=0)
        self.busy[method.remote(*task.arguments())] = worker, task

    def _joined(self, worker: int, about: dict[str, Any]) -> None:
        self.tries.pop(worker, None)
        self.hardware[about["hardware"]] += 1
        self.cluster.alive += 1

    def _lost(self, worker: int, task: Task, reason: str) -> None:
        """Ray starts the actor again, here or on another node; it is asked for nothing else until it has opened."""
        if task.method != "open":
            self.cluster.alive -= 1
        else:
            self.tries[worker] += 1
            if self.tries[worker] >= TRIES:  # it is left out; without any there is no run
                if not self.busy and not self.idle:
                    _refuse(f"every worker was lost, the last while it opened the model and the data: {reason}")
                return
        self._give(worker, Task("open"))

    def _again(self, queue: deque[Task], task: Task, reason: str, give_up: Callable[[Task, str], None]) -> None:
        """Once more, after all others; or never again."""
        if task.method == "open":
            return
        self.tries[task] += 1
        if self.tries[task] >= TRIES:
            del self.tries[task]
            give_up(task, reason)
        else:
            self.cluster.retried += 1
            queue.append(task)

    def _reason(self, task: Task, cause: BaseException) -> str:
        """Why a task failed; what would fail everywhere ends the run."""
        if isinstance(cause, OSError) and is_full(cause):
            raise OSError(cause.errno, os.strerror(cause.errno or 0))
        if task.method == "open":
            _refuse(_line(cause))
        return _line(cause)

    def _size(self, task: Task) -> int:
        first = task.shard * self.job.settings.shard
        return min(self.job.settings.shard, len(self.job.order) - first)


def _remote(store: Store) -> bool:
    return isinstance(store.path, Address)


def _refuse(reason: str) -> None:
    raise InputError(reason)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) if isinstance(error, InputError) else describe(error)


def _cause(error: BaseException) -> str:
    """Ray tells the whole story; what it says last is the cause."""
    return one_line(InputError(str(error).strip().rpartition("\n")[2]))
