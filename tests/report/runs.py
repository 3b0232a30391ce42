"""Run folders to report on: a measured one of bundled digits, and made-up ones of any size."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marginattack.storage.run_folder import Part, RunFolder

ATTACK = "MarginAttack(moves=200)"

# class names that would run or render if they were not escaped
HOSTILE = [
    "<script>window.pwned = 1</script>", "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>", "\"><b>bold</b>", "{{ 7 * 7 }}", "<!-- -->", "&amp;", "ship",
]  # fmt: skip


def real_run(
    path: Path, *, digits: int = 48, moves: int = 16, norms: tuple[str, ...] = ("l2", "linf"), **change: Any
) -> Path:
    """Measure bundled digits with the bundled network, as the command line does."""
    from marginattack.runs.run import run
    from marginattack.runs.settings import Settings

    settings = {
        "model": "zoo:mnist-cnn", "data": {"source": "samples:mnist", "limit": digits}, "norms": list(norms),
        "attacks": ["marginattack"], "attack": {"marginattack": {"moves": moves}}, "batch": 64,
        **change,
    }  # fmt: skip
    run(
        Settings.model_validate(settings), path, progress=_silent, on_finding=lambda finding: None, ignore_findings=True
    )
    return path


@contextmanager
def _silent(what: str, total: int) -> Iterator[Any]:
    yield lambda done: None


def made_up_run(
    path: Path, n: int, *, norms: tuple[str, ...] = ("l2", "linf"), attacks: tuple[str, ...] = ("marginattack",),
    classes: list[str] | int = 10, shape: tuple[int, ...] = (1, 8, 8), shard: int = 512, model: str = "made.py:up",
    seed: int = 0, scale: float = 1.0, leave_out: int = 0, named: bool = False, identity: dict[str, Any] | None = None,
    **change: Any,
) -> Path:  # fmt: skip
    """Write a run with n random results, without the last ``leave_out`` shards of each part."""
    names = classes if isinstance(classes, list) else None
    number = len(classes) if isinstance(classes, list) else classes
    parts = [Part(attack, norm) for attack in attacks for norm in norms]
    digest = hashlib.sha256(model.encode()).hexdigest()
    about = {
        "parts": [{"attack": part.attack, "norm": part.norm} for part in parts], "samples": n, "shard": shard,
        "model": {"name": model, "digest": digest, "classes": names, "preprocessing": {"mean": None, "from": "none"}},
        "data": {"name": "made-up", "digest": "0" * 64, "n": n, "shape": list(shape), "classes": None, "names": named},
        "attacks": dict.fromkeys(attacks, ATTACK),
        "settings": {"model": {"source": model}, "norms": list(norms), "seed": seed, "budget": None},
        "versions": {"marginattack": "0"}, "started": "2026-01-01T00:00:00+00:00",
        "sessions": [{"began": "2026-01-01T00:00:00+00:00", "host": "here", "hardware": "none", "batch": 1,
                      "command": f"marginattack measure --model {model} --out {path}"}],
        **change,
    }  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    identity = {
        "seed": seed, "model": {"digest": digest}, "data": {"digest": "0" * 64, "n": n, "shape": list(shape)},
        "norms": list(norms), "attacks": dict.fromkeys(attacks, ATTACK), "limit": None, "shuffle": None,
        "only_correct": False, "budget": None, "shard": shard, "lattice": None, "target": None, **(identity or {}),
    }  # fmt: skip
    store = RunFolder.create_or_resume(path, identity, about)
    for part in parts:
        for number_, rows in list(enumerate(store.shards))[: len(store.shards) - leave_out]:
            columns, images = _shard(part, rows, number, shape, seed, scale)
            if named:
                columns["name"] = [f"photos/{row:04d}.png" for row in rows]
            right = int((columns["label"] == columns["prediction"]).sum())
            store.commit(part, number_, columns, images, {"seen": len(rows), "right": right})
    return path


def _shard(
    part: Part, rows: range, classes: int, shape: tuple[int, ...], seed: int, scale: float
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    same = np.random.default_rng([rows[0]])  # the data are the same in every run
    n = len(rows)
    label = same.integers(0, classes, n)
    images = torch.from_numpy((same.random((n, *shape)) > 0.8).astype(np.float32))
    rng = np.random.default_rng([seed, rows[0], len(part.norm), len(part.attack)])
    to = (label + rng.integers(1, classes, n)) % classes
    right = rng.random(n) > 0.03
    unit = scale * (0.1 if part.norm == "linf" else 1.2)
    distance = np.where(right, unit * np.exp(0.35 * rng.standard_normal(n) + 0.03 * (label % 10)), 0.0)
    distance[right & (rng.random(n) < 0.002)] = np.inf
    change = torch.from_numpy(rng.standard_normal((n, *shape)).astype(np.float32)) * 0.05
    columns = {
        "id": np.arange(rows[0], rows[0] + n), "input": [f"{row:016x}" for row in rows], "label": label,
        "prediction": np.where(right, label, to), "confidence": 1 - 0.5 * 10 ** -(3 * distance.clip(max=3) / unit),
        "target": np.full(n, -1), "adversarial_label": to, "distance": distance, "success": np.isfinite(distance),
        "rejected": np.zeros(n, bool), "forwards": np.full(n, 205), "backwards": np.full(n, 209),
        "distance_at_90pct": distance,
    }  # fmt: skip
    return columns, {"original": images, "adversarial": (images + change).clamp(0, 1)}


def add_finding(path: Path, **finding: Any) -> None:
    """Add a finding of the diagnosis to a run."""
    default: Mapping[str, Any] = {
        "code": "not-converged", "grade": "warning", "seen": "it was still falling", "samples": 3, "of": 9,
        "meaning": "margins may be too large", "advice": "raise the budget",
    }  # fmt: skip
    store = RunFolder(path)
    store.save_findings([*store.findings, {**default, **finding}])
