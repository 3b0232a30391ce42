"""What one process of a cluster does: it holds the model, computes shards and commits them itself."""

import json
import os
import socket
import time
from contextlib import ExitStack
from typing import Any

import torch

from marginattack.core.classifier import Classifier
from marginattack.errors import InputError, describe
from marginattack.runs.job import Job, choose_batch, hardware, open_job
from marginattack.runs.settings import Settings
from marginattack.runs.verify import check_shard
from marginattack.storage.paths import is_full
from marginattack.storage.run_folder import Part, Store, differences


class Worker:
    """Opens the run from its settings, so that nothing large travels; hands back numbers alone."""

    def __init__(self, settings: str, out: str, folder: str, identity: str, started: str) -> None:
        self.settings, self.out, self.folder = settings, out, folder
        self.identity, self.started = identity, started
        self.opened: tuple[Job, Store, Classifier] | None = None
        self.held: tuple[int, Any] = (-1, None)
        self.stack = ExitStack()

    def open(self) -> dict[str, Any]:
        """Get ready, and refuse unless this is the run that the driver means. Again after a restart."""
        if self.opened is None:
            if os.path.isdir(self.folder):
                os.chdir(self.folder)  # relative names mean what they mean to the driver
            torch.set_num_threads(1)  # one core a worker, and the same rounding as any other worker
            try:
                job = open_job(Settings.model_validate_json(self.settings))
                changed = differences(json.loads(self.identity), json.loads(json.dumps(job.identity())))
                if changed:
                    raise InputError(f"it opens another model or other data ({changed})")
                settings = job.settings
                classifier = Classifier(
                    job.model.module, bounds=(0.0, 1.0), search=settings.search, compiled=settings.compiled
                )
                self.stack.enter_context(classifier.held())  # for good: what was captured of the model stays valid
                self.opened = job, self._store(), classifier
            except (InputError, OSError, ImportError) as error:
                if is_full(error):
                    raise
                reason = error if isinstance(error, InputError) else describe(error)
                raise InputError(f"the worker on {socket.gethostname()} cannot take part: {reason}") from None
        return {"host": socket.gethostname(), "pid": os.getpid(), "hardware": hardware(self.opened[2].device)}

    def batch(self) -> int:
        """What fits into this worker's memory."""
        job, _, classifier = self._ready()
        return choose_batch(job, classifier)

    def measure(self, shard: int, attack: str, norm: str, batch: int) -> float:
        """Compute a shard and commit it: the seconds that took."""
        began = time.perf_counter()
        job, store, classifier = self._ready()
        classifier.chunk = batch
        if self.held[0] != shard:
            self.held = -1, None  # the old samples go before the new ones come
            self.held = shard, job.samples(store.shards[shard])
        columns, images, about = job.compute(classifier, Part(attack, norm), self.held[1], batch)
        self._store()  # a worker that was cut off may find another run in the folder
        store.commit(Part(attack, norm), shard, columns, images, about)
        return time.perf_counter() - began

    def check(self, shard: int, attack: str, norm: str, batch: int) -> tuple[int, int]:
        """Read a shard back, whoever computed it: how many rows, and how many fail."""
        _, store, classifier = self._ready()
        classifier.chunk = batch
        return check_shard(store, classifier, Part(attack, norm), shard)

    def _ready(self) -> tuple[Job, Store, Classifier]:
        if self.opened is None:
            self.open()
        assert self.opened is not None
        return self.opened

    def _store(self) -> Store:
        hidden = f"it does not see the run in {self.out}: give --out on a shared file system or an object store"
        try:
            store = Store(self.out)
        except InputError as error:
            raise InputError(f"{hidden} ({error})") from None
        if store.manifest.get("started") != self.started:
            raise InputError(f"{hidden} (another run is there)")
        return store
