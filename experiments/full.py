"""Full runs of the paper's experiments on a GPU; several processes can share the rows of one.

    python experiments/full.py [--tf32] EXPERIMENT OUT SECONDS [ROW …]

Resumes what is under OUT; SECONDS limits each row. ``REPRODUCE_DATA`` lists the data files, as NAME=FILE. With
``--tf32`` attacks search in tf32; their points are verified in float32 like all others, and the settings mention it.
"""

import os
import shlex
import sys
import time
from pathlib import Path

import torch

from marginattack.reproduce import reproduce


def main() -> None:
    """Run an experiment with progress on stdout."""
    tf32 = "--tf32" in sys.argv
    name, out, limit, *rows = (word for word in sys.argv[1:] if word != "--tf32")
    data = os.environ.get("REPRODUCE_DATA", "")
    command = (f"REPRODUCE_DATA={shlex.quote(data)} " if data else "") + shlex.join(
        ["python", "experiments/full.py", *sys.argv[1:]]
    )
    began = time.perf_counter()

    def log(line: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} {name} {line}", flush=True)

    reproduce(
        name, Path(out), data=data.split(), only=rows, limit=float(limit), tf32=tf32, command=command,
        device="cuda" if torch.cuda.is_available() else "cpu", log=log,
    )  # fmt: skip
    log("done")


if __name__ == "__main__":
    main()
