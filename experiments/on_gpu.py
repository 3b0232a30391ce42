"""Rows of the paper's experiments in parallel processes on one GPU, as many as fit into the time.

    python experiments/on_gpu.py OUT SECONDS [PROCESSES]

First the times of MNIST and CIFAR-10, alone, with CW to the end and with CW that may stop, three repetitions each; then
the readings of the ℓ∞ settings beside PGD, PROCESSES (12) at a time, under CUDA MPS where it is installed. A row that
would exceed SECONDS stops at the end of a batch: its record states the n that it reached. Resumes what is under OUT.
``REPRODUCE_DATA`` is that of full.py.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

FULL = Path(__file__).with_name("full.py")
TIMED = ("mnist ", "cifar10 MarginAttack", "cifar10 CW, to the end", "cifar10 CW")
TIMING_SHARE = 0.4  # of the time
RESERVE = 5.0  # seconds, for loading torch and for the summaries


def tasks() -> list[tuple[str, str]]:
    """Experiments and rows, in the order in which they start."""
    from marginattack.reproduce.readings import rows

    return [("readings", row.name) for row in rows()]


def run(experiment: str, out: str, limit: float, *names: str) -> None:
    """Run rows of an experiment in a process of its own."""
    command = [sys.executable, str(FULL), experiment, out, f"{max(limit, 0):.0f}", *names]
    with suppress(subprocess.TimeoutExpired):  # what its batches finished is kept
        subprocess.run(command, check=False, timeout=None if limit == 0 else limit)


def main() -> None:
    """Run what fits, then write the summaries."""
    out, seconds, processes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 12
    end = time.monotonic() + seconds - RESERVE

    def left() -> float:
        return end - time.monotonic()

    for name in TIMED:
        if (share := left() - (1 - TIMING_SHARE) * seconds) > 0:
            run("timing", out, share, name)
    if shutil.which("nvidia-cuda-mps-control"):
        for variable in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            folder = os.environ.setdefault(variable, f"/tmp/{variable.lower()}")
            Path(folder).mkdir(parents=True, exist_ok=True)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False)

    def run_if_time(task: tuple[str, str]) -> None:
        if left() > 0:
            run(task[0], out, left(), task[1])

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run_if_time, tasks()))
    for experiment in ("timing", "readings"):
        if any((Path(out) / experiment).glob("part-*.json")):
            run(experiment, out, 0, "(the summary alone)")


if __name__ == "__main__":
    main()
