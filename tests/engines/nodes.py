"""A Ray cluster of nodes on this machine, on loopback. As a program it prints its address, and ends with its input.

    python nodes.py TEMPORARY_FOLDER NODES

``ray start`` on Linux allows several nodes on one machine, or nodes on loopback, but not both.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from processes import alive, below


@contextmanager
def start_nodes(count: int) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Start a cluster; yield its address and processes, and the environment in which it can be reached."""
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        process = subprocess.Popen(
            [sys.executable, __file__, folder, str(count)], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        started: set[int] = set()
        try:
            about = json.loads(process.stdout.readline())
            started = below(process.pid)
            yield about, environment
        finally:
            started |= below(process.pid)
            process.communicate(timeout=60)  # its input ends
    wait_until_ended(started)


def wait_until_ended(started: set[int], seconds: float = 15) -> None:
    """Wait until all of these processes have ended."""
    until = time.monotonic() + seconds
    while started & alive().keys() and time.monotonic() < until:
        time.sleep(0.1)
    assert not started & alive().keys()


def main(folder: str, count: int) -> None:
    from ray.cluster_utils import Cluster

    os.makedirs(folder)
    options = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20, "num_cpus": 1}
    head = {**options, "include_dashboard": False, "temp_dir": folder}
    os.environ["RAY_TMPDIR"] = os.path.dirname(folder)  # where Ray records its default cluster
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.head_node, *(cluster.add_node(**options) for _ in range(count - 1))]
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(os.path.join(sys.argv[1], "ray"), int(sys.argv[2]))
