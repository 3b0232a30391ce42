"""What a release costs its users: bytes of the wheel, time to install and import it, time to build the site.

    PYTHONPATH=src:benchmarks python benchmarks/release.py [--only wheel install import docs]

The wheel is built from the source distribution and installed by pip into a new environment that has torch and what
torch requires: the other dependencies are fetched, or come from pip's cache. Then it is imported there, after torch.
The site is built by what ``make docs`` runs. Times are on the clock and of the CPU, which depends less on what else the
machine does.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from record import write

ROOT = Path(__file__).parents[1]
IMPORTS = 5  # of which the median counts
IMPORT = (
    "import json, time, torch; clock, cpu = time.perf_counter(), time.process_time(); import marginattack as ma; "
    "ma.measure; print(json.dumps([time.perf_counter() - clock, time.process_time() - cpu]))"
)


def run(*words: object, **variables: str) -> str:
    """Run a command; what it prints. One that fails ends the program with its output."""
    ended = subprocess.run(
        [str(word) for word in words], check=False, text=True, cwd=ROOT, env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit code {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def timed(*words: object, **variables: str) -> dict[str, float]:
    """Seconds of a command, on the clock and of the CPU."""

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    clock, before = time.perf_counter(), cpu()
    run(*words, **variables)
    return {"seconds": round(time.perf_counter() - clock, 1), "cpu_seconds": round(cpu() - before, 1)}


def build(folder: Path) -> Path:
    """The wheel, built from the source distribution."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl"))


def environment(folder: Path) -> Path:
    """The interpreter of a new environment with torch."""
    run(sys.executable, "-m", "venv", folder / "env")
    python = folder / "env/bin/python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "torch", "numpy")
    return python


def import_seconds(python: Path) -> dict[str, float]:
    """Seconds of the import after that of torch: the median of some, the first of which is not counted."""
    code = ("-P", "-c", IMPORT)
    runs = [json.loads(run(python, *code, PYTHONPATH="", OMP_NUM_THREADS="1")) for _ in range(IMPORTS + 1)][1:]
    clock, cpu = (median(each) for each in zip(*runs, strict=True))
    return {"seconds": round(clock, 3), "cpu_seconds": round(cpu, 3)}


def build_site() -> dict[str, float]:
    """Seconds of what ``make docs`` runs: the notebooks, the site with every warning an error, its links."""
    pytest = (sys.executable, "-m", "pytest", "-q")
    parts = [
        timed(*pytest, "tests/test_notebooks.py"),
        timed(*pytest, "tests/test_site.py", SITE=tempfile.mkdtemp()),
    ]
    return {key: round(sum(part[key] for part in parts), 1) for key in parts[0]}


def main() -> None:
    """Measure, write the record and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("wheel", "install", "import", "docs")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    wanted = parser.parse_args().only
    numbers: dict[str, Any] = {"processes_running": round(os.getloadavg()[0], 1)}

    def note(name: str, measure: Callable[[], Any]) -> None:
        if name in wanted:
            numbers[name] = measure()
            print(name, numbers[name], flush=True)

    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        wheel = build(folder)
        note("wheel", lambda: {"bytes": wheel.stat().st_size})
        if "install" in wanted or "import" in wanted:
            python = environment(folder)
            pip = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
            numbers["install"] = timed(*pip)
            print("install", numbers["install"], flush=True)
            note("import", lambda: import_seconds(python))
        note("docs", build_site)
    write("release", numbers)


if __name__ == "__main__":
    main()
