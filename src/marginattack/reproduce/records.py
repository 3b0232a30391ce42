"""Records: results, the conditions needed to reproduce them, and a digest of both."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marginattack._version import __version__
from marginattack.errors import redact

STARTED = datetime.now(UTC)  # of this process
CODE = ("src", "benchmarks", "experiments", "tests", ":!benchmarks/records", ":!experiments/results")
STATED = ("command", "commit", "hardware", "python", "versions", "seed", "start", "end")  # by every record


def provenance(command: str, hardware: str, seed: int = 0) -> dict[str, Any]:
    """The conditions of a record; the commit is git's, marked dirty if code was changed.

    $COMMIT states it for copies without a repository, and has no effect inside one.
    """
    return {
        "command": redact(command),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "start": STARTED.isoformat(timespec="seconds"),
        "end": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware,
        "commit": COMMIT or os.environ.get("COMMIT", ""),
        "seed": seed,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "versions": {"marginattack": __version__, "numpy": np.__version__, "torch": str(torch.__version__)},
    }


def seal(conditions: dict[str, Any], numbers: Any, **more: Any) -> dict[str, Any]:
    """A record with its digest."""
    record = json.loads(json.dumps({"conditions": conditions, "numbers": numbers, **more}))
    return {**record, "digest": digest(record)}


def digest(record: dict[str, Any]) -> str:
    """SHA-256 of everything in a record except its digest."""
    stated = {key: value for key, value in record.items() if key != "digest"}
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


def find_fault(record: dict[str, Any]) -> str | None:
    """Why a record cannot be trusted, in a few words; None if it can."""
    if fault := _find_fault_in_conditions(record.get("conditions", {})):
        return fault
    if record.get("digest") != digest(record):
        return "was changed after it was written (other digest)"
    for part in record.get("parts", ()):
        if fault := _find_fault_in_conditions(part):
            return f"has a part that {fault}"
    return None


def _find_fault_in_conditions(stated: dict[str, Any]) -> str | None:
    if missing := [name for name in STATED if stated.get(name) in (None, "", {})]:
        return f"does not state {', '.join(missing)}"
    if "dirty" in stated["commit"]:
        return f"was measured with uncommitted code ({stated['commit']})"
    if stated["end"] < stated["start"]:
        return f"ends ({stated['end']}) before it starts ({stated['start']})"
    return None


def encode(values: Iterable[float]) -> str:
    """One number per sample in a line, with the digits of float32."""
    return " ".join(f"{value:.8g}" for value in values)


def decode(text: str) -> "np.ndarray":
    """The numbers of ``encode``."""
    return np.array(text.split(), dtype=float)


def _commit() -> str:
    """The commit of the code, marked dirty if code differs from it; empty outside a repository."""
    root = Path(__file__).parents[3]
    if not (root / "src/marginattack").is_dir():
        return ""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=root).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except OSError:
        return ""


COMMIT = _commit()  # when the process started: what it runs
