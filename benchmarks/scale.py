"""The cost and the gain of a cluster: overhead per shard, speed-up, the driver's memory, and a cost model.

    python benchmarks/scale.py measure     # overhead, speed-up, memory, on this machine: needs Ray
    python benchmarks/scale.py memory      # the last of these alone
    python benchmarks/scale.py trouble     # uneven shards and killed workers, against the simulation
    python benchmarks/scale.py million     # one million samples: see million.py
    python benchmarks/scale.py simulate    # the cost model against a simulation with stragglers and failures

Each writes its part of benchmarks/records/scale.json. Workers have one thread each. The load average before each run
shows how busy the machine was.
"""

import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import RECORDS, peak_memory, run_child, write
from torch import nn

SAMPLES = (1_000, 10_000, 100_000)  # of the measurement of memory
SHAPES = {"tiny": (1, 4, 4), "real": (3, 32, 32), "uneven": (1, 4, 4)}
KILLS = (0.0, 15.0, 15.0, 8.0)  # mean seconds between kills, of the runs with trouble; 0: none


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).eval()


def real() -> nn.Module:
    from stream import network

    return network()


class Uneven(nn.Sequential):
    """In a worker a forward sleeps, usually briefly, sometimes long: stragglers, on whatever machine."""

    def forward(self, images: torch.Tensor) -> Any:
        if Path(sys.argv[0]).name == "default_worker.py":
            time.sleep(0.005 if random.random() < 0.99 else random.lognormvariate(0.0, 0.5))
        return super().forward(images)  # type: ignore[no-untyped-call]


def uneven() -> nn.Module:
    return Uneven(tiny()).eval()


def make_data(path: Path, n: int, kind: str) -> None:
    """Random images with the model's own labels."""
    x = np.random.default_rng(0).integers(0, 256, (n, *SHAPES[kind]), dtype=np.uint8)
    model, labels = globals()[kind](), []
    with torch.no_grad():
        for first in range(0, n, 1000):
            labels.append(model(torch.from_numpy(x[first : first + 1000]).float() / 255).argmax(1).numpy())
    np.savez(path, x=x, y=np.concatenate(labels), layout="nchw")


# --- measurements -----------------------------------------------------------------------------------------------------


class Killer(threading.Thread):
    """Kills random workers, and records how long each was away."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self.every, self.draw = every, random.Random(0)
        self.running: dict[int, int] = {}  # worker: process
        self.killed: dict[int, float] = {}  # worker: time
        self.away: list[float] = []
        self.stop = threading.Event()

    def add(self, worker: int, pid: int) -> None:
        """A worker has started."""
        self.running[worker] = pid
        if worker in self.killed:
            self.away.append(time.perf_counter() - self.killed.pop(worker))

    def run(self) -> None:
        while not self.stop.wait(self.draw.expovariate(1 / self.every)):
            if self.running:
                worker = self.draw.choice(list(self.running))
                self.killed[worker] = time.perf_counter()
                os.kill(self.running.pop(worker), signal.SIGKILL)


def instrument(workers: int, kills: float, numbers: dict[str, Any]) -> None:
    """Patch the engine to record the seconds of its shards, in the workers and in total, into ``numbers``."""
    from marginattack.runs.engines.ray import WorkerPool
    from marginattack.runs.engines.serial import SerialPool

    pool: Any = WorkerPool if workers else SerialPool
    measure, spread, joined, killer = pool.measure, WorkerPool._execute, WorkerPool._register, Killer(kills)
    seconds: list[float] = []

    def recorded_spread(self: Any, *arguments: Any) -> Any:
        for task, result in spread(self, *arguments):
            if task.method == "measure":
                seconds.append(result)
            yield task, result

    def recorded_joined(self: Any, worker: int, about: dict[str, Any]) -> None:
        killer.add(worker, about["pid"])
        joined(self, worker, about)

    def timed_measure(self: Any, batch: int, progress: Any) -> Any:
        while isinstance(self, WorkerPool) and self.cluster.alive < workers:  # start-up does not count
            _wait(self)
        if killer.every:
            killer.start()
        wall, cpu = time.perf_counter(), time.process_time()
        failed = measure(self, batch, progress)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        numbers.update(wall=wall, driver_cpu=cpu, peak_measuring=peak_memory())
        killer.stop.set()
        if isinstance(self, WorkerPool):
            numbers.update(inside=self.seconds, shards=self.shards, retried=self.cluster.retried, away=killer.away)
            numbers.update(spread=statistics.stdev(seconds) / statistics.mean(seconds), set_aside=len(failed))
        return failed

    crew: Any = WorkerPool
    pool.measure, crew._execute, crew._register = timed_measure, recorded_spread, recorded_joined


def _wait(crew: Any) -> None:
    """Let workers that are still starting join."""
    done, _ = crew.ray.wait(list(crew.busy), num_returns=1, timeout=1)
    for reference in done:
        worker, *_ = crew.busy.pop(reference)
        crew._register(worker, crew.ray.get(reference))
        crew.idle.append(worker)


def run_once(folder: str, kind: str, n: str, shard: str, attack: str, workers: str, kills: str) -> dict[str, Any]:
    """One run in this process; workers = 0 is the serial engine."""
    from marginattack.runs.engines.ray import Cluster
    from marginattack.runs.engines.serial import serial_engine
    from marginattack.runs.run import run
    from marginattack.runs.settings import read_settings

    torch.set_num_threads(1)
    data, name, _, moves = Path(folder) / f"{kind}-{n}.npz", *attack.partition(":")
    if not data.exists():
        make_data(data, int(n), kind)
    numbers: dict[str, Any] = {}
    instrument(int(workers), float(kills), numbers)
    flags = {"model": f"{__file__}:{kind}", "data": str(data), "attacks": [name], "shard": int(shard), "batch": 256}
    if moves:
        flags[f"attack.{name}.moves"] = int(moves)
    engine = Cluster(workers=int(workers)) if int(workers) else serial_engine
    run(
        read_settings(None, [], flags), Path(tempfile.mkdtemp(dir=folder)), engine=engine,
        on_finding=lambda finding: None,
        progress=lambda what, n: nullcontext(lambda done: None), ignore_findings=True,
    )  # fmt: skip
    return {**numbers, "peak_mib": peak_memory()}


def measure_run(
    folder: str, kind: str, n: int, shard: int, attack: str, workers: int, kills: float = 0
) -> dict[str, Any]:
    """One run in a process of its own."""
    load = round(os.getloadavg()[0], 1)
    os.environ["OMP_NUM_THREADS"] = "1"
    row = {"n": n, "shard": shard, "attack": attack, "workers": workers, "load_before": load,
           **run_child(__file__, "child", folder, kind, n, shard, attack, workers, kills)}  # fmt: skip
    print(row, flush=True)
    return row


def measure_all(folder: str) -> dict[str, Any]:
    """Overhead, speed-up and memory."""
    overhead = [measure_run(folder, "tiny", 1200, 4, "fgsm", 1) for _ in range(3)]
    for row in overhead:
        row["overhead_ms"] = 1e3 * (row["wall"] - row["inside"]) / row["shards"]
        row["driver_cpu_ms"] = 1e3 * row["driver_cpu"] / row["shards"]
    pairs = [
        [measure_run(folder, "real", 512, 16, "marginattack:100", workers) for workers in (1, 2)] for _ in range(3)
    ]
    return {
        "overhead": overhead, "overhead_ms": statistics.median(row["overhead_ms"] for row in overhead),
        "pairs": pairs, "speedup": [one["wall"] / two["wall"] for one, two in pairs], "memory": measure_memory(folder),
    }  # fmt: skip


def measure_memory(folder: str) -> list[dict[str, Any]]:
    """The driver's memory against the number of samples."""
    return [measure_run(folder, "tiny", n, 500, "fgsm", 2) for n in SAMPLES]


# --- cost model and simulation ----------------------------------------------------------------------------------------


def predict(
    workers: int, shards: int, seconds: float, *, overhead: float, start: float, spread: float, failures: float,
    again: float,
) -> float:  # fmt: skip
    """The cost model: seconds of a run.

    ``seconds`` per shard (mean; ``spread`` is its coefficient of variation), ``overhead`` of the engine per shard,
    ``start`` until a worker has opened the model, ``failures`` per worker and second, ``again`` until a lost worker is
    replaced. A failure loses half a shard; at the end the others wait for the last shard: half of it if shards are
    equal, longer if one of those under way is.
    """
    each = (seconds + overhead) * (1 + failures * (seconds / 2 + again))
    longest = seconds * math.exp(_sigma(spread) * math.sqrt(2 * math.log(max(min(workers, shards), 2))))
    tail = longest / 2 * (1 - 1 / workers) if shards > workers else longest - seconds
    return start + max(shards / workers, 1) * each + tail


def simulate(
    workers: int, shards: int, seconds: float, *, overhead: float, start: float, spread: float, failures: float,
    again: float, seed: int = 0,
) -> float:  # fmt: skip
    """The same, event by event: a free worker takes the next shard; a failing one returns it and is away a while."""
    draw, sigma = random.Random(seed), _sigma(spread)
    times = [seconds * math.exp(draw.gauss(-(sigma**2) / 2, sigma)) for _ in range(shards)]
    free = [(start, worker) for worker in range(workers)]
    queue, end = list(range(shards))[::-1], 0.0
    waiting: list[tuple[float, int]] = []  # shards to be returned, by the time when the loss of their worker is noticed
    while queue or waiting:
        now, worker = heappop(free)
        while waiting and waiting[0][0] <= now:
            queue.insert(0, heappop(waiting)[1])
        if not queue:
            if waiting:
                heappush(free, (waiting[0][0], worker))
            continue
        shard = queue.pop()
        duration = times[shard] + overhead
        lost = draw.expovariate(failures) if failures else math.inf
        if lost < duration:
            heappush(waiting, (now + lost, shard))
            heappush(free, (now + lost + again, worker))
        else:
            end = max(end, now + duration)
            heappush(free, (now + duration, worker))
    return end


def _sigma(spread: float) -> float:
    """The standard deviation of the logarithm of a log-normal with this coefficient of variation."""
    return math.sqrt(math.log(1 + spread**2))


def project(overhead: float) -> list[dict[str, Any]]:
    """An audit of 48 GPU hours on 1 to 1,000 GPUs, with shards sized by the rule and with shards of a minute."""
    rows = []
    work = 48 * 3600.0
    about = {"overhead": overhead, "start": 60.0, "spread": 0.3, "failures": 1 / (24 * 3600), "again": 120.0}
    for workers in (1, 2, 8, 32, 128, 512, 1000):
        for rule, seconds in (("rule", min(60.0, max(1.0, work / (20 * workers)))), ("minute", 60.0)):
            shards = round(work / seconds)
            times = [simulate(workers, shards, seconds, seed=seed, **about) for seed in range(20)]
            rows.append({
                "gpus": workers, "sized_by": rule, "shard_seconds": seconds, "shards": shards,
                "model_s": predict(workers, shards, seconds, **about), "simulated_s": statistics.mean(times),
                "simulated_worst_s": max(times), "efficiency": work / workers / statistics.mean(times),
            })  # fmt: skip
    return rows


def simulate_measured(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """The simulation of the small measured runs, with their own seconds per shard."""
    about = {"overhead": numbers["overhead_ms"] / 1e3, "start": 0.0, "spread": 0.1, "failures": 0.0, "again": 0.0}
    rows = []
    for row in (row for pair in numbers["pairs"] for row in pair):
        expected = simulate(row["workers"], int(row["shards"]), row["inside"] / row["shards"], **about)
        rows.append({"workers": row["workers"], "measured_s": row["wall"], "simulated_s": expected})
    return rows


def simulate_trouble(rows: list[dict[str, Any]], overhead: float) -> list[dict[str, Any]]:
    """Simulation and cost model of runs with uneven shards and killed workers, given how often and for how long."""
    results = []
    for row in rows:
        failures = row["retried"] / row["workers"] / row["wall"]
        about = {"overhead": overhead, "start": 0.0, "spread": row["spread"], "failures": failures,
                 "again": statistics.mean(row["away"] or [0.0])}  # fmt: skip
        run = row["workers"], int(row["shards"]), row["inside"] / row["shards"]
        times = [simulate(*run, seed=seed, **about) for seed in range(20)]
        results.append({
            **about, "workers": run[0], "shards": run[1], "seconds": run[2], "lost": row["retried"],
            "measured_s": row["wall"], "simulated_s": statistics.mean(times), "least_s": min(times),
            "most_s": max(times), "model_s": predict(*run, **about),
        })  # fmt: skip
    return results


def main(what: str) -> None:
    """Measure a part, and simulate everything again."""
    file = RECORDS / "scale.json"
    numbers = json.loads(file.read_text())["numbers"] if file.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        if what == "measure":
            numbers["measured"] = measure_all(folder)
        if what == "memory":
            numbers["measured"]["memory"] = measure_memory(folder)
        if what == "trouble":
            numbers["trouble"] = [measure_run(folder, "uneven", 192, 4, "fgsm", 2, kills) for kills in KILLS]
    overhead = numbers["measured"]["overhead_ms"] / 1e3
    numbers["troubled"] = simulate_trouble(numbers.get("trouble", []), overhead)
    numbers |= {"projected": project(overhead), "against_measured": simulate_measured(numbers["measured"])}
    for row in [*numbers["projected"], *numbers["against_measured"], *numbers["troubled"]]:
        print(row)
    write("scale", numbers)


if __name__ == "__main__":
    if sys.argv[1] == "child":
        print(json.dumps(run_once(*sys.argv[2:])))
    elif sys.argv[1] == "million":
        import million

        million.main(*map(int, sys.argv[2:]))
    else:
        main(sys.argv[1])
