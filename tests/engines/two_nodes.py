"""A Ray cluster of two nodes on this machine, on loopback: prints its address, and ends with its input.

    python two_nodes.py TEMPORARY_FOLDER

``ray start`` on Linux allows several nodes on one machine, or nodes on loopback, but not both.
"""

import json
import os
import sys

from ray.cluster_utils import Cluster


def main(folder: str) -> None:
    os.makedirs(folder)
    options = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20, "num_cpus": 1}
    head = {**options, "include_dashboard": False, "temp_dir": folder}
    os.environ["RAY_TMPDIR"] = os.path.dirname(folder)  # where Ray records its default cluster
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**options)
    raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, second)]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(os.path.join(sys.argv[1], "ray"))
