"""Getting hold of a Ray cluster: with a token, without usage statistics, on loopback unless a cluster is named."""

import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marginattack.errors import InputError

MEMORY = 100 * 2**20  # of the object store: nothing large goes through it
KNOCK = 10.0  # seconds that a cluster has to answer


@contextmanager
def connected(
    address: str | None, workers: int | None, gpus: float | None, device: str | None
) -> Iterator[tuple[Any, int, float]]:
    """Ray, how many workers to start, and how many GPUs each has. What was started here ends here."""
    address = None if address == "local" else address  # Ray's own word for it, but it would listen everywhere
    ray = _imported(address)
    if ray.is_initialized():
        yield ray, *_counted(ray, workers, gpus, device)
        return
    folder = None if address else tempfile.mkdtemp(prefix="marginattack-ray-")
    try:
        if folder is None:
            _join(ray, str(address))
        else:
            _begin(ray, folder, workers, gpus, device)
        yield ray, *_counted(ray, workers, gpus, device)
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _imported(address: str | None) -> Any:
    """Ray, told before it is imported how to behave; what the environment says already goes first."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        known = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        if address is None and not known and not (Path.home() / ".ray/auth_token").exists():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # inherited by what is started here, by nobody else
        if address is None or address.rpartition(":")[0] in ("127.0.0.1", "localhost"):
            # Ray's word, on every system, for: this machine is 127.0.0.1, so listen on nothing else
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'marginattack[ray]'") from None
    return ray


def _join(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "://" not in host:  # Ray itself would knock for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        hint = "is it up, and does RAY_AUTH_TOKEN or ~/.ray/auth_token hold its token (RAY_AUTH_MODE=disabled: none)?"
        raise InputError(f"no Ray cluster answers at --address {address}: {reason}; {hint}") from None


def _begin(ray: Any, folder: str, workers: int | None, gpus: float | None, device: str | None) -> None:
    """A cluster of this machine alone, as large as the workers need."""
    import torch

    there = torch.cuda.device_count() if device != "cpu" else 0
    each = (1.0 if there else 0.0) if gpus is None else gpus
    count = workers or (int(there / each) if each else None)  # None: Ray counts the cores that it may use
    if each * (count or 1) > there:
        needed = f"--gpus-per-worker {each:g}" + (f" for {workers} workers" if workers else "")
        found = f"this machine has {there} GPU{'' if there == 1 else 's'}" if there else "this machine has no GPU"
        raise InputError(f"{needed}: {found}; share one by a part of it, as 0.5, or name a cluster with --address")
    with _uninterrupted():
        ray.init(
            address="local", num_cpus=count, num_gpus=math.ceil((count or 0) * each), include_dashboard=False,
            dashboard_host="127.0.0.1", _node_ip_address="127.0.0.1", object_store_memory=MEMORY, log_to_driver=False,
            logging_level="ERROR", _temp_dir=folder,
        )  # fmt: skip


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits: Ray, interrupted while it starts, leaves processes that look for their cluster for a minute."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _counted(ray: Any, workers: int | None, gpus: float | None, device: str | None) -> tuple[int, float]:
    """As stated, or one worker a GPU, or one a core where there are no GPUs."""
    total = ray.cluster_resources()
    there = 0.0 if device == "cpu" else total.get("GPU", 0.0)
    each = (1.0 if there else 0.0) if gpus is None else gpus
    fits = int(there / each) if each else int(total.get("CPU", 0.0))
    if workers is None and fits < 1:
        raise InputError(f"the cluster has {there:g} GPUs and none is left for a worker: state --workers and it waits")
    return workers or fits, each
