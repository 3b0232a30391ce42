"""One process of a cluster: it opens the model, and measures, commits and verifies shards."""

import json
import os
import socket
import time
from contextlib import ExitStack
from typing import Any

import torch

from marginattack.errors import InputError, describe
from marginattack.execution.session import open_session
from marginattack.runs.job import hardware, open_job
from marginattack.runs.settings import Settings
from marginattack.runs.shards import ShardRunner
from marginattack.storage.files import is_disk_full
from marginattack.storage.lock import join_lease
from marginattack.storage.run_folder import Part, RunFolder, differences


class Worker:
    """Opens the run from its settings and returns only numbers, so that nothing large is sent."""

    def __init__(self, settings: str, out: str, working_folder: str, identity: str, owner: str) -> None:
        self.settings, self.out, self.working_folder = settings, out, working_folder
        self.identity, self.owner = identity, owner  # of the lease
        self.runner: ShardRunner | None = None
        self.stack = ExitStack()

    def open(self) -> dict[str, Any]:
        """Open the model and data; raise InputError unless they are the driver's. Called again after a restart."""
        return {"pid": os.getpid(), "hardware": hardware(self._open().session.classifier.device)}

    def choose_batch(self) -> int:
        """Return a batch size that fits into this worker's memory."""
        runner = self._open()
        return runner.job.choose_batch(runner.session)

    def measure(self, shard: int, part: Part, batch: int) -> float:
        """Measure and commit a shard; return the seconds it took."""
        started = time.perf_counter()
        self._open().measure(shard, part, batch)
        return time.perf_counter() - started

    def bound(self, shard: int, part: Part, batch: int) -> float:
        """Compute and commit the bounds of a shard; return the seconds it took."""
        started = time.perf_counter()
        self._open().bound(shard, part, batch)
        return time.perf_counter() - started

    def verify(self, shard: int, part: Part, batch: int) -> tuple[int, int]:
        """Verify a stored shard; return its number of rows, and how many fail."""
        return self._open().verify(shard, part, batch)

    def _open(self) -> ShardRunner:
        if self.runner is None:
            if os.path.isdir(self.working_folder):
                os.chdir(self.working_folder)  # relative paths mean the same as for the driver
            torch.set_num_threads(1)  # one core per worker, and the same rounding in all workers
            try:
                identity = json.loads(self.identity)
                job = open_job(Settings.model_validate(json.loads(self.settings)), identity)
                changed = differences({**identity, "stamp": job.data.stamp()}, job.worker_identity())
                if changed:
                    raise InputError(f"it opens another model or other data ({changed})")
                folder = self._open_folder()
                session = self.stack.enter_context(open_session(job.make_classifier()))  # open until the worker ends
                self.runner = ShardRunner(job, folder, session)
            except (InputError, OSError, ImportError) as error:
                if is_disk_full(error):
                    raise
                reason = error if isinstance(error, InputError) else describe(error)
                raise InputError(f"the worker on {socket.gethostname()} cannot join: {reason}") from None
        return self.runner

    def _open_folder(self) -> RunFolder:
        try:
            path = RunFolder(self.out).path
        except InputError as error:
            hint = "give --out on a shared file system or an object store"
            raise InputError(f"it does not see the run in {self.out}: {hint} ({error})") from None
        return RunFolder(path, self.stack.enter_context(join_lease(path, self.owner)))
