"""One million samples: the driver's memory, the overhead per shard and the time of the report.

    python benchmarks/scale.py million [SAMPLES]

Tiny inputs, a linear model, FGSM with a budget of four passes, shards of 512, two workers with one thread each. The
overhead per shard is the time that the workers did not spend on reading, computing and committing shards. Writes
benchmarks/records/million.json.
"""

import json
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import scale
from record import peak_memory, run_child, write

from marginattack.reproduce.markdown import table

SAMPLES, SHARD, WORKERS, BUDGET = 1_000_000, 512, 2, 4


def measure(data: str, out: str) -> dict[str, Any]:
    """The run, in this process."""
    from marginattack.runs.engines.ray import Cluster
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings

    numbers: dict[str, Any] = {}
    scale.instrument(WORKERS, 0, numbers)
    flags = {"model": f"{scale.__file__}:tiny", "data": data, "attacks": ["fgsm"], "shard": SHARD, "batch": SHARD}
    wall, cpu = time.perf_counter(), time.process_time()
    run(
        read_settings(None, [], {**flags, "budget": BUDGET}), out, engine=Cluster(workers=WORKERS),
        on_finding=lambda finding: None, progress=lambda what, n: nullcontext(lambda done: None), ignore_findings=True,
    )  # fmt: skip
    return {
        "shards": numbers["shards"], "measuring_s": numbers["wall"], "in_workers_s": numbers["inside"],
        "overhead_ms": 1e3 * (WORKERS * numbers["wall"] - numbers["inside"]) / numbers["shards"],
        "driver_cpu_measuring_ms": 1e3 * numbers["driver_cpu"] / numbers["shards"],
        "driver_cpu_ms": 1e3 * (time.process_time() - cpu) / numbers["shards"],
        "total_s": time.perf_counter() - wall, "peak_mib": peak_memory(),
    }  # fmt: skip


def report(out: str) -> dict[str, Any]:
    """The page about the run, in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    from marginattack.report import write_report

    write_report([out], Path(out).with_suffix(".html"))
    return {"s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "peak_mib": peak_memory()}


def main(samples: int = SAMPLES) -> None:
    """Each step in a process of its own."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data.npz", Path(folder) / "run"
        scale.make_data(data, samples, "tiny")
        numbers: dict[str, Any] = {"samples": samples, "shard": SHARD, "workers": WORKERS, "budget": BUDGET}
        numbers["load_before"] = round(os.getloadavg()[0], 1)
        numbers["run"] = run_child(__file__, "measure", data, out)
        numbers["load_between"] = round(os.getloadavg()[0], 1)
        numbers["report"] = run_child(__file__, "report", out)
    print(json.dumps(numbers, indent=1))
    write("million" if samples == SAMPLES else f"million-{samples}", numbers)


def page(numbers: dict[str, Any]) -> list[str]:
    """The rows of the table in docs/scale.md."""
    run, report = numbers["run"], numbers["report"]
    waited, each = run["overhead_ms"], 1e3 * run["total_s"] / run["shards"]
    rows = [
        ("driver, per shard, while workers measure", f"{run['driver_cpu_measuring_ms']:.1f} ms", f"{waited:.1f} ms"),
        ("driver, per shard, whole run", f"{run['driver_cpu_ms']:.1f} ms", f"{each:.0f} ms"),
        ("report", f"{report['cpu_s']:.1f} s", f"{report['s']:.0f} s"),
    ]
    return table(("what", "CPU time", "wall-clock time"), rows)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[2:]) if sys.argv[1] == "measure" else report(*sys.argv[2:])))
