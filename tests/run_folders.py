"""Helpers for tests of runs: data, the command line in its own process, and the content of a run folder."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from command_line import ENVIRONMENT as ENVIRONMENT
from command_line import Command
from run_models import SHAPE, Small

MODELS = Path(__file__).parent / "run_models.py"


def data(path: Path, n: int = 64) -> Path:
    """An npz of n images; the small network misclassifies every tenth."""
    x = np.random.default_rng(0).random((n, *SHAPE), dtype=np.float32)
    with torch.no_grad():
        y = Small()(torch.from_numpy(x)).argmax(1).numpy()
    y[::10] = (y[::10] + 1) % 4
    np.savez(path, x=x, y=y)
    return path


def command(folder: Path, out: Path, *more: str, model: str = "small", n: int = 64) -> list[str]:
    """A measurement of both norms with small shards."""
    file = folder / f"data-{n}.npz"
    if not file.exists():
        data(file, n)
    attack = ["--attack", "marginattack", "--set", "attack.marginattack.moves=20", "--set", "shard=8", "--batch", "8"]
    source = ["--model", f"{MODELS}:{model}", "--data", str(file), "--norm", "l2", "--norm", "linf"]
    return [sys.executable, "-m", "marginattack", "measure", *source, *attack, "--out", str(out), *more]


def call(
    arguments: list[str], env: dict[str, str] = ENVIRONMENT, first: Callable[[], object] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end: ours after calling ``first`` in its process; others with the options of subprocess."""
    if arguments[:3] == [sys.executable, "-m", "marginattack"] and not options:
        return Command(arguments, env, first).wait()
    return subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False, env=env, **options)


def content(run: Path) -> dict[str, dict[str, Any]]:
    """The content of every Parquet file of a run, by name."""
    return {
        str(file.relative_to(run)): pq.ParquetFile(file).read().to_pydict() for file in sorted(run.rglob("*.parquet"))
    }


def temporary_files(run: Path) -> list[Path]:
    """Temporary files of interrupted writes."""
    return list(run.rglob("*.tmp"))
