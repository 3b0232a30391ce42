"""What a cluster costs and brings: overhead a shard, two workers against one, the driver's memory, and a cost model.

    python benchmarks/scale.py measure     # overhead, speed-up, memory, on this machine: needs Ray
    python benchmarks/scale.py memory      # the last of these alone
    python benchmarks/scale.py trouble     # uneven shards, and workers that are killed: against the simulation
    python benchmarks/scale.py simulate    # the cost model against a simulation with stragglers and failures

All write benchmarks/records/scale.json, each its own part. Workers have one thread each. On a machine that others use
too the numbers say how busy it was (load average before each of them).
"""

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from torch import nn

HERE = Path(__file__).parent
SAMPLES = (1_000, 10_000, 100_000)  # whose memory is measured
SHAPES = {"tiny": (1, 4, 4), "real": (3, 32, 32), "uneven": (1, 4, 4)}
KILLS = (0.0, 15.0, 15.0, 8.0)  # seconds from one kill to the next, on average, of the runs with trouble; 0: none


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).eval()


def real() -> nn.Module:
    from stream import network

    return network()


class Uneven(nn.Sequential):
    """In a worker a forward sleeps, mostly short, now and then long: stragglers, whatever else the machine does."""

    def forward(self, images: torch.Tensor) -> Any:
        if Path(sys.argv[0]).name == "default_worker.py":
            time.sleep(0.005 if random.random() < 0.99 else random.lognormvariate(0.0, 0.5))
        return super().forward(images)  # type: ignore[no-untyped-call]


def uneven() -> nn.Module:
    return Uneven(tiny()).eval()


def make_data(path: Path, n: int, kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (n, *SHAPES[kind]), dtype=np.uint8)
    model, labels = globals()[kind](), []
    with torch.no_grad():
        for first in range(0, n, 1000):
            labels.append(model(torch.from_numpy(x[first : first + 1000]).float() / 255).argmax(1).numpy())
    np.savez(path, x=x, y=np.concatenate(labels), layout="nchw")


# --- measured ---------------------------------------------------------------------------------------------------------


class Killer(threading.Thread):
    """Kills one worker after another, at random, and says how long each was away."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self.every, self.draw = every, random.Random(0)
        self.at_work: dict[int, int] = {}  # the process of each worker
        self.killed: dict[int, float] = {}
        self.away: list[float] = []
        self.over = threading.Event()

    def joined(self, worker: int, pid: int) -> None:
        self.at_work[worker] = pid
        if worker in self.killed:
            self.away.append(time.perf_counter() - self.killed.pop(worker))

    def run(self) -> None:
        while not self.over.wait(self.draw.expovariate(1 / self.every)):
            if self.at_work:
                worker = self.draw.choice(list(self.at_work))
                self.killed[worker] = time.perf_counter()
                os.kill(self.at_work.pop(worker), signal.SIGKILL)


def child(folder: str, kind: str, n: str, shard: str, attack: str, workers: str, kills: str) -> None:
    """One run: what its shards took in the workers, and what they took in all; workers = 0 is the serial engine."""
    from marginattack.runs.engines.ray import Cluster, WorkerPool
    from marginattack.runs.engines.serial import SerialPool, serial_engine
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings

    torch.set_num_threads(1)
    data, name, _, moves = Path(folder) / f"{kind}-{n}.npz", *attack.partition(":")
    if not data.exists():
        make_data(data, int(n), kind)
    pool: Any = WorkerPool if int(workers) else SerialPool
    measured: dict[str, Any] = {}
    measure, spread, joined, killer = pool.measure, WorkerPool._execute, WorkerPool._register, Killer(float(kills))
    seconds: list[float] = []

    def noted(self: Any, *arguments: Any) -> Any:
        for task, result in spread(self, *arguments):
            if task.method == "measure":
                seconds.append(result)
            yield task, result

    def met(self: Any, worker: int, about: dict[str, Any]) -> None:
        killer.joined(worker, about["pid"])
        joined(self, worker, about)

    def timed(self: Any, batch: int, progress: Any) -> Any:
        while isinstance(self, WorkerPool) and self.cluster.alive < int(workers):  # the start is not the work
            _wait(self)
        if killer.every:
            killer.start()
        wall, cpu = time.perf_counter(), time.process_time()
        aside = measure(self, batch, progress)
        measured.update(wall=time.perf_counter() - wall, driver_cpu=time.process_time() - cpu, peak_measuring=_peak())
        killer.over.set()
        if isinstance(self, WorkerPool):
            measured.update(inside=self.seconds, shards=self.shards, retried=self.cluster.retried, away=killer.away)
            measured.update(spread=statistics.stdev(seconds) / statistics.mean(seconds), set_aside=len(aside))
        return aside

    crew: Any = WorkerPool
    pool.measure, crew._execute, crew._register = timed, noted, met
    flags = {"model": f"{__file__}:{kind}", "data": str(data), "attacks": [name], "shard": int(shard), "batch": 256}
    if moves:
        flags[f"attack.{name}.moves"] = int(moves)
    out = Path(tempfile.mkdtemp(dir=folder))
    engine = Cluster(workers=int(workers)) if int(workers) else serial_engine
    run(
        read_settings(None, [], flags), out, progress=lambda what, n: nullcontext(lambda done: None),
        on_finding=lambda finding: None, engine=engine, ignore_findings=True,
    )  # fmt: skip
    print(json.dumps({**measured, "peak_mib": _peak()}))


def _peak() -> float:
    """The most memory that this process held so far, in MiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def _wait(crew: Any) -> None:
    """Let the workers that are still opening join."""
    done, _ = crew.ray.wait(list(crew.busy), num_returns=1, timeout=1)
    for reference in done:
        worker, _ = crew.busy.pop(reference)
        crew._register(worker, crew.ray.get(reference))
        crew.idle.append(worker)


def once(folder: str, kind: str, n: int, shard: int, attack: str, workers: int, kills: float = 0) -> dict[str, Any]:
    load = os.getloadavg()[0]
    arguments = [sys.executable, __file__, "child", folder, kind, str(n), str(shard), attack, str(workers),
                 str(kills)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    row = {"n": n, "shard": shard, "attack": attack, "workers": workers, "load_before": round(load, 1),
           **json.loads(printed.splitlines()[-1])}  # fmt: skip
    print(row, flush=True)
    return row


def measured() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        overhead = [once(folder, "tiny", 1200, 4, "fgsm", 1) for _ in range(3)]
        for row in overhead:
            row["overhead_ms"] = 1e3 * (row["wall"] - row["inside"]) / row["shards"]
            row["driver_cpu_ms"] = 1e3 * row["driver_cpu"] / row["shards"]
        pairs = [[once(folder, "real", 512, 16, "marginattack:100", workers) for workers in (1, 2)] for _ in range(3)]
        memory = [once(folder, "tiny", n, 500, "fgsm", 2) for n in SAMPLES]
    return {
        "overhead": overhead, "overhead_ms": statistics.median(row["overhead_ms"] for row in overhead),
        "pairs": pairs, "speedup": [one["wall"] / two["wall"] for one, two in pairs], "memory": memory,
    }  # fmt: skip


# --- modelled and simulated -------------------------------------------------------------------------------------------


def modelled(
    workers: int, shards: int, seconds: float, *, overhead: float, start: float, spread: float, failures: float,
    again: float,
) -> float:  # fmt: skip
    """Seconds that a run takes.

    ``seconds`` a shard (mean; ``spread`` is its coefficient of variation), ``overhead`` of the engine a shard,
    ``start`` until a worker has opened the model, ``failures`` a worker and second, ``again`` until a lost worker is
    back. Work is lost half a shard at a time; at the end the others wait for the last one, which is half a shard where
    shards are alike, and longer where the longest of those under way is.
    """
    each = (seconds + overhead) * (1 + failures * (seconds / 2 + again))
    longest = seconds * math.exp(_sigma(spread) * math.sqrt(2 * math.log(max(min(workers, shards), 2))))
    tail = longest / 2 * (1 - 1 / workers) if shards > workers else longest - seconds
    return start + max(shards / workers, 1) * each + tail


def simulated(
    workers: int, shards: int, seconds: float, *, overhead: float, start: float, spread: float, failures: float,
    again: float, seed: int = 0,
) -> float:  # fmt: skip
    """The same, event by event: whoever is free takes the next shard; who fails puts it back and is away a while."""
    draw, sigma = random.Random(seed), _sigma(spread)
    times = [seconds * math.exp(draw.gauss(-(sigma**2) / 2, sigma)) for _ in range(shards)]
    free = [(start, worker) for worker in range(workers)]
    queue, end = list(range(shards))[::-1], 0.0
    waiting: list[tuple[float, int]] = []  # shards that come back when their worker's loss is noticed
    while queue or waiting:
        now, worker = heappop(free)
        while waiting and waiting[0][0] <= now:
            queue.insert(0, heappop(waiting)[1])
        if not queue:
            if waiting:
                heappush(free, (waiting[0][0], worker))
            continue
        shard = queue.pop()
        lasts = times[shard] + overhead
        lost = draw.expovariate(failures) if failures else math.inf
        if lost < lasts:
            heappush(waiting, (now + lost, shard))
            heappush(free, (now + lost + again, worker))
        else:
            end = max(end, now + lasts)
            heappush(free, (now + lasts, worker))
    return end


def _sigma(spread: float) -> float:
    """Of the logarithm of a log-normal with this coefficient of variation."""
    return math.sqrt(math.log(1 + spread**2))


def projected(overhead: float) -> list[dict[str, Any]]:
    """One audit of 48 GPU hours on 1 to 1,000 GPUs: by the rule for the size of shards, and with shards of a minute."""
    rows = []
    work = 48 * 3600.0
    for workers in (1, 2, 8, 32, 128, 512, 1000):
        for rule in ("rule", "minute"):
            seconds = min(60.0, max(1.0, work / (20 * workers))) if rule == "rule" else 60.0
            about = {"overhead": overhead, "start": 60.0, "spread": 0.3, "failures": 1 / (24 * 3600), "again": 120.0}
            shards = round(work / seconds)
            found = [simulated(workers, shards, seconds, seed=seed, **about) for seed in range(20)]
            model = modelled(workers, shards, seconds, **about)
            rows.append({
                "gpus": workers, "sized_by": rule, "shard_seconds": seconds, "shards": shards, "model_s": model,
                "simulated_s": statistics.mean(found), "simulated_worst_s": max(found),
                "efficiency": work / workers / statistics.mean(found),
            })  # fmt: skip
    return rows


def against_measured(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """The simulation of the small runs that were measured, with their own seconds a shard."""
    rows = []
    for pair in numbers["pairs"]:
        for row in pair:
            each = row["inside"] / row["shards"]
            about = {
                "overhead": numbers["overhead_ms"] / 1e3,
                "start": 0.0,
                "spread": 0.1,
                "failures": 0.0,
                "again": 0.0,
            }
            expected = simulated(row["workers"], int(row["shards"]), each, **about)
            rows.append({"workers": row["workers"], "measured_s": row["wall"], "simulated_s": expected})
    return rows


def troubled(rows: list[dict[str, Any]], overhead: float) -> list[dict[str, Any]]:
    """Small runs with uneven shards and killed workers, simulated and modelled, given how often and for how long."""
    found = []
    for row in rows:
        failures = row["retried"] / row["workers"] / row["wall"]
        about = {"overhead": overhead, "start": 0.0, "spread": row["spread"], "failures": failures,
                 "again": statistics.mean(row["away"] or [0.0])}  # fmt: skip
        run = row["workers"], int(row["shards"]), row["inside"] / row["shards"]
        times = [simulated(*run, seed=seed, **about) for seed in range(20)]
        found.append({
            **about, "workers": run[0], "shards": run[1], "seconds": run[2], "lost": row["retried"],
            "measured_s": row["wall"], "simulated_s": statistics.mean(times), "least_s": min(times),
            "most_s": max(times), "model_s": modelled(*run, **about),
        })  # fmt: skip
    return found


def page(numbers: dict[str, Any]) -> list[str]:
    """The lines of docs/scale.md that come from the record."""
    lines = ["| GPUs | seconds a shard | shards | model | simulated, mean (worst of 20) | GPU hours | efficiency |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in numbers["projected"]:
        if row["sized_by"] == "rule":
            lines.append(
                f"| {row['gpus']:,} | {row['shard_seconds']:.0f} | {row['shards']:,} | {_span(row['model_s'])} "
                f"| {_span(row['simulated_s'])} ({_span(row['simulated_worst_s'])}) "
                f"| {row['gpus'] * row['simulated_s'] / 3600:.0f} | {row['efficiency']:.0%} |"
            )
    lines += ["| workers | measured | simulated |", "|---|---|---|"]
    lines += [
        f"| {row['workers']} | {row['measured_s']:.1f} s | {row['simulated_s']:.1f} s |"
        for row in numbers["against_measured"]
    ]
    lines += ["| workers lost | away each | seconds a shard | spread | measured | simulated, mean (of 20) | model |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {row['lost']} | {row['again']:.1f} s | {row['seconds']:.2f} | {row['spread']:.0%} "
        f"| {row['measured_s']:.1f} s | {row['simulated_s']:.1f} s "
        f"({row['least_s']:.1f} to {row['most_s']:.1f}) | {row['model_s']:.1f} s |"
        for row in numbers["troubled"]
    ]
    lines += ["| samples | driver's peak until all is measured | and until the run is diagnosed |", "|---|---|---|"]
    lines += [
        f"| {row['n']:,} | {row['peak_measuring']:.0f} MiB | {row['peak_mib']:.0f} MiB |"
        for row in numbers["measured"]["memory"]
    ]
    return lines


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def main(what: str) -> None:
    file = record.RECORDS / "scale.json"
    numbers = json.loads(file.read_text())["numbers"] if file.exists() else {}
    if what == "measure":
        numbers["measured"] = measured()
    if what == "memory":
        with tempfile.TemporaryDirectory() as folder:
            numbers["measured"]["memory"] = [once(folder, "tiny", n, 500, "fgsm", 2) for n in SAMPLES]
    if what == "trouble":
        with tempfile.TemporaryDirectory() as folder:
            numbers["trouble"] = [once(folder, "uneven", 192, 4, "fgsm", 2, kills) for kills in KILLS]
    overhead = numbers["measured"]["overhead_ms"] / 1e3
    numbers["troubled"] = troubled(numbers.get("trouble", []), overhead)
    numbers |= {"projected": projected(overhead), "against_measured": against_measured(numbers["measured"])}
    for row in [*numbers["projected"], *numbers["against_measured"], *numbers["troubled"]]:
        print(row)
    record.write("scale", numbers)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(*sys.argv[2:])
    else:
        main(sys.argv[1])
