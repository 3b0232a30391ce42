"""Full runs on a GPU, several processes side by side: each takes some rows, and keeps what it has.

    python experiments/full.py [--tf32] EXPERIMENT OUT SECONDS [ROW …]

It continues what is under OUT; SECONDS bounds each row. ``REPRODUCE_DATA`` lists the data files, as NAME=FILE. With
``--tf32`` attacks search in tf32, and the points they find are checked in float32, as all are; the settings say so.
"""

import os
import sys
import time
from pathlib import Path

import torch

from marginattack.reproduce import reproduce


def main() -> None:
    tf32 = "--tf32" in sys.argv
    name, out, limit, *rows = (word for word in sys.argv[1:] if word != "--tf32")
    os.environ.setdefault("COMMAND", f"python experiments/full.py{' --tf32' * tf32} {name}")
    began = time.perf_counter()
    record = reproduce(
        name, Path(out), data=os.environ.get("REPRODUCE_DATA", "").split(), only=rows, limit=float(limit), tf32=tf32,
        device="cuda" if torch.cuda.is_available() else "cpu",
        say=lambda line: print(f"{time.perf_counter() - began:6.1f} {name} {line}", flush=True),
    )  # fmt: skip
    print(f"{time.perf_counter() - began:6.1f} {name} done", len(str(record)), flush=True)


if __name__ == "__main__":
    main()
