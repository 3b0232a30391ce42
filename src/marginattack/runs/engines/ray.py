"""The Ray engine: many shards at a time, on a cluster of any size.

Each worker is an actor with the model and computes one shard at a time; an idle worker gets the next shard. Workers
commit their shards themselves, so that the driver's memory does not grow with the number of samples. A lost worker is
restarted and its shard is queued again; a shard that is computed twice gives the same file. A worker that exceeds
``--shard-timeout`` is killed and treated as lost. A shard that fails ``ATTEMPTS`` times, on different workers if
possible, is reported as failed.
"""

import json
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marginattack.errors import InputError, describe, one_line
from marginattack.execution.session import Session
from marginattack.runs.bound_shard import bound_settings
from marginattack.runs.engines import FailedShard, Pool
from marginattack.runs.engines.ray_start import connect
from marginattack.runs.failures import exceeded
from marginattack.runs.job import Job
from marginattack.storage.bounds import open_bounds
from marginattack.storage.files import is_disk_full, remove_temporary_files
from marginattack.storage.paths import is_remote
from marginattack.storage.run_folder import Part, RunFolder

ATTEMPTS = 3
POLL_SECONDS = 0.5


class Task(NamedTuple):
    """A method of a worker and its arguments."""

    method: str
    arguments: tuple[int, Part, int] | tuple[()] = ()  # shard, part, batch


class Call(NamedTuple):
    """A task that a worker is busy with, and when it began."""

    worker: int
    task: Task
    began: float


@dataclass(kw_only=True)
class Cluster:
    """The engine: an existing cluster (``address``), or one on this machine that lasts as long as the run."""

    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    alive: int = field(default=0, init=False)
    retried: int = field(default=0, init=False)

    @contextmanager
    def __call__(self, job: Job, folder: RunFolder, session: Session) -> Iterator[Pool]:
        device = job.settings.device
        if device not in (None, "cpu", "cuda"):
            raise InputError(f"--device {device} does not exist on a cluster: give cuda or cpu, or omit it")
        try:
            with connect(self.address, self.workers, self.gpus, device) as (ray, workers, gpus):
                pool = WorkerPool(ray, self, job, folder, workers, gpus)
                try:
                    yield pool
                finally:
                    pool.kill()
        finally:
            remove_temporary_files(folder.path)  # of workers that were lost or killed

    def note(self) -> str:
        """The state of the workers, for a progress bar."""
        workers = f"{self.alive} worker{'' if self.alive == 1 else 's'}"
        return f"{workers}, {self.retried} retried" if self.retried else workers


class WorkerPool:
    """The workers of one run."""

    def __init__(self, ray: Any, cluster: Cluster, job: Job, folder: RunFolder, workers: int, gpus: float) -> None:
        from marginattack.runs.engines.worker import Worker

        self.ray, self.cluster, self.job, self.folder = ray, cluster, job, folder
        # max_task_retries lets calls wait while an actor restarts; retries of a call are counted here instead
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)(Worker)
        device = job.settings.device or ("cuda" if gpus else "cpu")  # stated, so that no worker falls back to the CPU
        arguments = (
            json.dumps(job.settings.model_copy(update={"device": device}).model_dump()),
            str(folder.path if is_remote(folder.path) else folder.path.absolute()),
            os.getcwd(), json.dumps(job.worker_identity()), folder.lease.owner if folder.lease else "",
        )  # fmt: skip
        self.actors = [remote.remote(*arguments) for _ in range(workers)]
        self.busy: dict[Any, Call] = {}  # by the reference of the pending result
        self.overdue: set[Any] = set()  # references of calls whose worker was killed
        self.idle: list[int] = []
        self.failures: defaultdict[int | Task, list[int]] = defaultdict(list)  # of opening and of tasks: the workers
        self.hardware: Counter[str] = Counter()
        self.seconds = self.shards = 0.0
        for worker in range(workers):
            self._submit(worker, Task("open"))

    def choose_batch(self) -> int:
        if self.job.settings.batch is not None:
            return self.job.settings.batch
        return min(int(batch) for _, batch in self._execute([Task("choose_batch")], _refuse))

    def measure(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        return self._compute("measure", self.folder.pending(), batch, progress)

    def bound(self, batch: int, progress: Callable[[int], None]) -> list[FailedShard]:
        return self._compute("bound", open_bounds(self.folder, bound_settings(self.job)), batch, progress)

    def _compute(
        self, method: str, pending: list[tuple[int, Part]], batch: int, progress: Callable[[int], None]
    ) -> list[FailedShard]:
        failed: list[FailedShard] = []

        def give_up(task: Task, error: str) -> None:
            shard, part, _ = task.arguments  # type: ignore[misc]
            ids = self.job.order[list(self.folder.shards[shard])].tolist()
            failed.append(FailedShard(shard=shard, attack=part.attack, norm=part.norm, error=error, ids=ids))

        tasks = [Task(method, (shard, part, batch)) for shard, part in pending]
        for seconds in self._execute_shards(tasks, give_up, progress):
            self.seconds, self.shards = self.seconds + seconds, self.shards + 1
        if failed and not self.folder.finished():
            raise InputError(f"every shard failed: {failed[0].error}")
        return failed

    def verify(self, progress: Callable[[int], None]) -> dict[str, int]:
        batch = self.folder.manifest["sessions"][-1]["batch"]
        tasks = [Task("verify", (shard, part, batch)) for shard, part in self.folder.finished()]
        counts = list(self._execute_shards(tasks, _refuse, progress))
        return {"rows": sum(rows for rows, _ in counts), "failed": sum(failed for _, failed in counts)}

    def about(self) -> dict[str, Any]:
        hardware = "; ".join(sorted(self.hardware)) or "no worker was needed"
        seconds = round(self.seconds / self.shards, 3) if self.shards else None
        return {"engine": "ray", "workers": len(self.actors), "hardware": hardware, "retried": self.cluster.retried,
                "seconds_per_shard": seconds}  # fmt: skip

    def kill(self) -> None:
        """End every worker, even one that hangs."""
        for actor in self.actors:
            self.ray.kill(actor, no_restart=True)

    def _execute_shards(
        self, tasks: list[Task], give_up: Callable[[Task, str], None], progress: Callable[[int], None]
    ) -> Iterator[Any]:
        """Execute tasks of one shard each and report the samples that are done."""
        for task, result in self._execute(tasks, give_up):
            yield result
            progress(len(self.folder.shards[task.arguments[0]]))  # type: ignore[misc]

    def _execute(self, tasks: Iterable[Task], give_up: Callable[[Task, str], None]) -> Iterator[tuple[Task, Any]]:
        """Give each task to an idle worker until all tasks are done or given up; yield their results."""
        queue = deque(tasks)
        while queue or any(call.task.method != "open" for call in self.busy.values()):
            while queue and self.idle:
                self._submit(self._pick_worker(queue[0]), queue.popleft())
            done, _ = self.ray.wait(list(self.busy), num_returns=1, timeout=POLL_SECONDS)
            self._kill_hung_workers()
            for reference in done:
                worker, task, _ = self.busy.pop(reference)
                try:
                    result = self.ray.get(reference)
                except self.ray.exceptions.RayTaskError as error:
                    self.idle.append(worker)
                    self._retry(queue, task, worker, _explain(task, error.cause), give_up)
                except self.ray.exceptions.RayError as error:
                    lost = f"its worker was lost: {_last_line(error)}"
                    reason = exceeded(self.job.settings.shard_timeout) if reference in self.overdue else lost
                    self._reopen(worker, task, _last_line(error))
                    self._retry(queue, task, worker, reason, give_up)
                else:
                    self.idle.append(worker)
                    if task.method == "open":
                        self._register(worker, result)
                    else:
                        yield task, result

    def _pick_worker(self, task: Task) -> int:
        """Take an idle worker, if possible one where the task has not failed yet."""
        others = [worker for worker in self.idle if worker not in self.failures.get(task, [])]
        worker = (others or self.idle)[-1]
        self.idle.remove(worker)
        return worker

    def _submit(self, worker: int, task: Task) -> None:
        method = getattr(self.actors[worker], task.method).options(max_task_retries=0)
        self.busy[method.remote(*task.arguments)] = Call(worker, task, time.monotonic())

    def _kill_hung_workers(self) -> None:
        """Kill workers that take too long; Ray restarts them. Opening the run has no limit: it may wait for a node."""
        latest = time.monotonic() - self.job.settings.shard_timeout
        for reference, call in self.busy.items():
            if call.began < latest and call.task.method != "open" and reference not in self.overdue:
                self.overdue.add(reference)
                self.ray.kill(self.actors[call.worker], no_restart=False)

    def _register(self, worker: int, about: dict[str, Any]) -> None:
        """Count a worker that has opened the run."""
        self.failures.pop(worker, None)
        self.hardware[about["hardware"]] += 1
        self.cluster.alive += 1

    def _reopen(self, worker: int, task: Task, reason: str) -> None:
        """Let a lost worker, which Ray restarts on this or another node, open the run before anything else."""
        if task.method != "open":
            self.cluster.alive -= 1
        else:
            self.failures[worker].append(worker)
            if len(self.failures[worker]) >= ATTEMPTS:  # the run continues without it
                if not self.busy and not self.idle:
                    raise InputError(f"every worker was lost, the last while it opened the model and data: {reason}")
                return
        self._submit(worker, Task("open"))

    def _retry(
        self, queue: deque[Task], task: Task, worker: int, reason: str, give_up: Callable[[Task, str], None]
    ) -> None:
        """Queue a failed task again, behind all others, or give it up."""
        if task.method == "open":
            return
        self.failures[task].append(worker)
        if len(self.failures[task]) >= ATTEMPTS:
            del self.failures[task]
            give_up(task, reason)
        else:
            self.cluster.retried += 1
            queue.append(task)


def _refuse(task: Task, error: str) -> None:
    shard = f" shard {task.arguments[0]}" if task.arguments else ""
    raise InputError(f"no worker can {task.method.replace('_', ' ')}{shard}: {error}")


def _explain(task: Task, cause: BaseException) -> str:
    """Why a task failed, in one line; raises errors that would occur on every worker."""
    if isinstance(cause, OSError) and is_disk_full(cause):
        raise OSError(cause.errno, os.strerror(cause.errno or 0))
    reason = " ".join(str(cause).split()) if isinstance(cause, InputError) else describe(cause)
    if task.method == "open":
        raise InputError(reason)
    return reason


def _last_line(error: BaseException) -> str:
    """The cause of a Ray error, which is the last line of its message."""
    return one_line(InputError(str(error).strip().rpartition("\n")[2]))
