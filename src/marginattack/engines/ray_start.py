"""Getting hold of a Ray cluster: with a token, without usage statistics, on loopback unless a cluster is named."""

import math
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marginattack.classifier import Refused

MEMORY = 100 * 2**20  # of the object store: nothing large goes through it


@contextmanager
def connected(
    address: str | None, workers: int | None, gpus: float | None, device: str | None
) -> Iterator[tuple[Any, int, float]]:
    """Ray, how many workers to start, and how many GPUs each has. What was started here ends here."""
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
        raise Refused("--engine ray needs Ray: pip install 'marginattack[ray]'") from None
    return ray


def _join(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        hint = "is it up, and does RAY_AUTH_TOKEN or ~/.ray/auth_token hold its token (RAY_AUTH_MODE=disabled: none)?"
        raise Refused(f"no Ray cluster answers at --address {address}: {reason}; {hint}") from None


def _begin(ray: Any, folder: str, workers: int | None, gpus: float | None, device: str | None) -> None:
    """A cluster of this machine alone, as large as the workers need."""
    import torch

    there = torch.cuda.device_count() if device != "cpu" else 0
    each = (1.0 if there else 0.0) if gpus is None else gpus
    if each and not there:
        raise Refused(f"--gpus-per-worker {each:g}: this machine has no GPU; name a cluster that has with --address")
    count = workers or (int(there / each) if each else os.cpu_count() or 1)
    ray.init(
        num_cpus=count, num_gpus=math.ceil(count * each), include_dashboard=False, dashboard_host="127.0.0.1",
        _node_ip_address="127.0.0.1", object_store_memory=MEMORY, log_to_driver=False, logging_level="ERROR",
        _temp_dir=folder,
    )  # fmt: skip


def _counted(ray: Any, workers: int | None, gpus: float | None, device: str | None) -> tuple[int, float]:
    """As stated, or one worker a GPU, or one a core where there are no GPUs."""
    total = ray.cluster_resources()
    there = 0.0 if device == "cpu" else total.get("GPU", 0.0)
    each = (1.0 if there else 0.0) if gpus is None else gpus
    fits = int(there / each) if each else int(total.get("CPU", 0.0))
    if workers is None and fits < 1:
        raise Refused(f"the cluster has {there:g} GPUs and none is left for a worker: state --workers and it waits")
    return workers or fits, each
