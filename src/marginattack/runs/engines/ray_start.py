"""Connecting to Ray: with a token, without usage statistics, and only on loopback unless a cluster is named."""

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

OBJECT_STORE_BYTES = 100 * 2**20  # nothing large is sent through it
CONNECT_SECONDS = 10.0


@contextmanager
def connect(
    address: str | None, workers: int | None, gpus: float | None, device: str | None
) -> Iterator[tuple[Any, int, float]]:
    """Yield Ray, the number of workers, and the GPUs of each. A cluster that is started here is shut down here."""
    address = None if address == "local" else address  # as Ray calls it, but Ray would listen on all interfaces
    ray = _import_ray(address)
    if ray.is_initialized():
        yield ray, *_count_workers(ray, workers, gpus, device)
        return
    folder = None if address else tempfile.mkdtemp(prefix="marginattack-ray-")
    try:
        if folder is None:
            _join_cluster(ray, str(address))
        else:
            _start_cluster(ray, folder, workers, gpus, device)
        yield ray, *_count_workers(ray, workers, gpus, device)
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _import_ray(address: str | None) -> Any:
    """Import Ray, which then reads its options from the environment; variables that are set take precedence."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        known = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        if address is None and not known and not (Path.home() / ".ray/auth_token").exists():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # inherited by the processes of this cluster
        if address is None or address.rpartition(":")[0] in ("127.0.0.1", "localhost"):
            # on every system, makes Ray use 127.0.0.1 as the address of this machine and listen only there
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'marginattack[ray]'") from None
    return ray


def _join_cluster(ray: Any, address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "://" not in host:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        hint = "is it up, and does RAY_AUTH_TOKEN or ~/.ray/auth_token hold its token (RAY_AUTH_MODE=disabled: none)?"
        raise InputError(f"no Ray cluster answers at --address {address}: {reason}; {hint}") from None


def _start_cluster(ray: Any, folder: str, workers: int | None, gpus: float | None, device: str | None) -> None:
    """Start a cluster on this machine, as large as the workers need."""
    import torch

    available = torch.cuda.device_count() if device != "cpu" else 0
    each = (1.0 if available else 0.0) if gpus is None else gpus
    count = workers or (int(available / each) if each else None)  # None: Ray counts the cores
    if each * (count or 1) > available:
        wanted = f"--gpus-per-worker {each:g}" + (f" for {workers} workers" if workers else "")
        existing = f"this machine has {available or 'no'} GPU{'s' if available > 1 else ''}"
        raise InputError(f"{wanted}: {existing}; share a GPU, as 0.5, or name a cluster with --address")
    with _delay_interrupt():
        ray.init(
            address="local", num_cpus=count, num_gpus=math.ceil((count or 0) * each), include_dashboard=False,
            dashboard_host="127.0.0.1", _node_ip_address="127.0.0.1", object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False, logging_level="ERROR", _temp_dir=folder,
        )  # fmt: skip


@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Delay Ctrl-C: interrupting Ray while it starts leaves processes that search for their cluster for a minute."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def _count_workers(ray: Any, workers: int | None, gpus: float | None, device: str | None) -> tuple[int, float]:
    """The number of workers, by default one per GPU, or one per core without GPUs; and the GPUs of each."""
    total = ray.cluster_resources()
    available = 0.0 if device == "cpu" else total.get("GPU", 0.0)
    each = (1.0 if available else 0.0) if gpus is None else gpus
    fitting = int(available / each) if each else int(total.get("CPU", 0.0))
    if workers is None and fitting < 1:
        raise InputError(f"no GPU is free for a worker ({available:g} in the cluster): give --workers to wait for one")
    return workers or fitting, each
