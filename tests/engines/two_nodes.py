"""A Ray cluster of two nodes on this machine, on loopback: says where it is, and lasts until its input ends.

    python two_nodes.py TEMPORARY_FOLDER

``ray start`` would do, but on Linux it lets one machine's nodes listen on loopback or be several, not both.
"""

import json
import os
import sys

from ray.cluster_utils import Cluster


def main(folder: str) -> None:
    os.makedirs(folder)
    options = {"node_ip_address": "127.0.0.1", "object_store_memory": 100 * 2**20, "num_cpus": 1}
    head = {**options, "include_dashboard": False, "temp_dir": folder}
    os.environ["RAY_TMPDIR"] = os.path.dirname(folder)  # where Ray notes which cluster is the default: nobody else's
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**options)
    raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, second)]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(os.path.join(sys.argv[1], "ray"))
