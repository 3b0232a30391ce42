"""A run that is distributed over a Ray cluster, survives lost workers, and is resumed by the same command.

$ python examples/cluster.py                          # a cluster on this machine
$ python examples/cluster.py --address auto           # an existing cluster; --out must be visible to all nodes
$ python examples/cluster.py --engine serial          # the same run without Ray, or the rest of it
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence

import marginattack as ma


def main(words: Sequence[str] | None = None) -> ma.Margins:
    """Measure in shards; the folder can be resumed by either engine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="ray", choices=["ray", "serial"])
    parser.add_argument("--address")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--out", default="cluster-run")
    given = parser.parse_args(words)
    ray = ["--workers", given.workers, *(["--address", given.address] if given.address else [])]
    command = [
        sys.executable, "-m", "marginattack", "measure", "--model", "zoo:mnist-cnn", "--data", "samples:mnist",
        "--limit", "8", "--shard", "4", "--norm", "linf", "--budget", "40", "--out", given.out,
        "--engine", given.engine, *(ray if given.engine == "ray" else []),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    margins = ma.Margins.load(given.out)
    print(margins)
    return margins


if __name__ == "__main__":
    main()
