"""Full runs on a GPU, several processes side by side: each takes some rows, and keeps what it has.

    python experiments/full.py EXPERIMENT OUT SECONDS [ROW …]

It continues what is under OUT; SECONDS bounds each row. ``REPRODUCE_DATA`` lists the data files, as NAME=FILE.
"""

import os
import sys
import time
from pathlib import Path

import torch

from marginattack.reproduce import reproduce


def main() -> None:
    name, out, limit, *rows = sys.argv[1:]
    os.environ.setdefault("COMMAND", f"python experiments/full.py {name}")
    began = time.perf_counter()
    record = reproduce(
        name, Path(out), data=os.environ.get("REPRODUCE_DATA", "").split(), only=rows, limit=float(limit),
        device="cuda" if torch.cuda.is_available() else "cpu",
        say=lambda line: print(f"{time.perf_counter() - began:6.1f} {name} {line}", flush=True),
    )  # fmt: skip
    print(f"{time.perf_counter() - began:6.1f} {name} done", len(str(record)), flush=True)


if __name__ == "__main__":
    main()
