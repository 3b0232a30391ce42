"""Results of the suite: distances of all samples as Parquet, and from them the records and their statistics.

``suite.parquet`` has a row per (model, norm, attack, budget, seed, sample); what else is known of a cell is in the
metadata of its schema. ``suite-curves.parquet`` has the course of each first seed, for the figures.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from overall import OURS, is_baseline
from record import RECORDS, round_numbers, write
from scipy.stats import trim_mean
from suite_cells import load

from marginattack.analysis import benchmarking as bench

DISTANCES, CURVES = "suite.parquet", "suite-curves.parquet"
EARLIER = "earlier runs"  # the least distances of cells that were run again since
TRIM = 0.1  # share of samples at either end that the trimmed mean leaves out
RESAMPLES = 2000
TIE = 1e-4  # relative difference of distances that counts as a tie

Key = tuple[str, str, str, int, int]  # model, norm, attack, budget, seed


@dataclass(frozen=True, eq=False)
class Result:
    """A cell that was run."""

    about: dict[str, Any]
    trial: bench.Trial

    @property
    def key(self) -> Key:
        a = self.about
        return a["model"], a["norm"], a["attack"], a["budget"], a["seed"]


Results = dict[Key, Result]


def read_work(work: Path) -> Results:
    """All cells of a work folder."""
    found = (Result(*load(path)) for path in sorted(work.glob("*/*.npz")))
    return {result.key: result for result in found}


def read_failures(work: Path) -> dict[tuple[str, str], dict[str, str]]:
    """By (model, norm): the cells that failed, and why."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(work.glob("*/*.failed")):
        model, norm = path.parent.name.split("_")[:2]
        found.setdefault((model, norm), {})[path.stem.replace("_", ":", 1)] = path.read_text()
    return found


def write_parquet(folder: Path, results: Results) -> None:
    """Write both files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(results.values())
    sizes = [len(part.trial.distance) for part in parts]

    def repeat(key: str, kind: Any) -> Any:
        return pa.array(np.repeat([part.about[key] for part in parts], sizes), kind)

    columns = {
        **{key: repeat(key, pa.string()).dictionary_encode() for key in ("model", "norm", "attack")},
        "budget": repeat("budget", pa.int32()), "seed": repeat("seed", pa.int32()),
        "sample": pa.array(np.concatenate([np.arange(n) for n in sizes]), pa.int32()),
        "distance": pa.array(np.concatenate([p.trial.distance for p in parts]).astype(np.float32)),
        "forwards": pa.array(np.concatenate([p.trial.forwards for p in parts]), pa.int32()),
        "backwards": pa.array(np.concatenate([p.trial.backwards for p in parts]), pa.int32()),
    }  # fmt: skip
    on = sorted({json.dumps(part.about["on"], sort_keys=True) for part in parts})
    cells = [part.about | {"on": on.index(json.dumps(part.about["on"], sort_keys=True))} for part in parts]
    table = pa.table(columns).replace_schema_metadata({"cells": json.dumps(cells), "on": json.dumps(on)})
    _write(folder / DISTANCES, table)
    firsts = [part for part in parts if part.about["seed"] == 0 and part.trial.curve.size]
    curves = {key: [part.about[key] for part in firsts] for key in ("model", "norm", "attack", "budget", "seed")}
    flat = [part.trial.curve.astype(np.float32).ravel() for part in firsts]
    _write(folder / CURVES, pa.table(curves | {"curve": pa.array(flat, pa.list_(pa.float32()))}))


def _write(path: Path, table: pa.Table) -> None:
    scratch = path.with_suffix(".tmp")
    pq.write_table(table, scratch, compression="zstd", compression_level=12)
    scratch.replace(path)


def read_parquet(folder: Path) -> Results:
    """The results of both files; curves that are missing are empty."""
    if not (folder / DISTANCES).exists():
        return {}
    table = pq.read_table(folder / DISTANCES)
    on, cells = (json.loads(table.schema.metadata[key]) for key in (b"on", b"cells"))
    on = [json.loads(each) for each in on]
    curves: dict[Key, NDArray[np.float32]] = {}
    if (folder / CURVES).exists():
        stored = pq.read_table(folder / CURVES)
        keys = zip(*(stored[name].to_pylist() for name in ("model", "norm", "attack", "budget", "seed")), strict=True)
        curves = {key: np.asarray(each.values) for key, each in zip(keys, stored["curve"], strict=True)}
    kinds = {"distance": np.float64, "forwards": np.int64, "backwards": np.int64}
    arrays = {name: table[name].to_numpy().astype(kind) for name, kind in kinds.items()}
    results, first = {}, 0
    for about in cells:
        rows = slice(first, first + about["n"])
        first += about["n"]
        about["on"] = on[about["on"]]
        key = about["model"], about["norm"], about["attack"], about["budget"], about["seed"]
        curve = curves.get(key, np.zeros(0)).reshape(about["n"], -1).astype(np.float64)
        trial = bench.Trial(
            attack=about["settings"], budget=about["budget"], distance=arrays["distance"][rows],
            curve=curve, forwards=arrays["forwards"][rows], backwards=arrays["backwards"][rows],
            rejected=about["rejected"], seconds=about["seconds"],
        )  # fmt: skip
        results[key] = Result(about, trial)
    return results


def merge(old: Results, new: Results) -> Results:
    """New cells replace old ones, whose distances stay in the pool; results on other samples or weights are dropped."""
    digests = {key[:2]: result.about["digest"] for key, result in new.items()}
    kept = {
        key: each for key, each in old.items() if digests.get(key[:2], each.about["digest"]) == each.about["digest"]
    }
    merged = kept | new
    for key in sorted(kept.keys() & new.keys(), key=lambda key: key[2] != EARLIER):  # the pools of both first
        past = (*key[:2], EARLIER, 0, 0)
        merged[past] = _pooled([each for each in (merged.get(past), kept[key]) if each is not None])
    return merged


def _pooled(results: Sequence[Result]) -> Result:
    """The least distances of cells that were run again since."""
    longest, distance = max(results, key=lambda each: len(each.trial.distance)), pool(results)
    about = longest.about | {"attack": EARLIER, "budget": 0, "seed": 0, "n": len(distance)}
    return Result(about, replace(longest.trial, distance=distance, curve=np.zeros((0, 0)), budget=0))


def pool(results: Iterable[Result]) -> bench.Numbers:
    """The least distance of each sample; cells may have only the first samples."""
    trials = [result.trial for result in results]
    best = np.full(max(len(trial.distance) for trial in trials), np.inf)
    for trial in trials:
        n = len(trial.distance)
        best[:n] = np.minimum(best[:n], trial.distance)
    return best


def excesses(distance: bench.Numbers, best: bench.Numbers) -> bench.Numbers:
    """The excess d / d_best − 1 of each sample with a known adversarial point, truncated as the mean excess is."""
    known = np.isfinite(best) & (best > 0)
    each: bench.Numbers = np.minimum(distance, bench.max_distance(best))[known] / best[known] - 1
    return each


def compare(ours: bench.Numbers, theirs: bench.Numbers) -> dict[str, float]:
    """The mean difference of two attacks' excesses with its 95 % bootstrap interval, and the shares won and lost."""
    draws = np.random.default_rng(0).integers(0, len(ours), (RESAMPLES, len(ours)))
    low, high = np.quantile((ours - theirs)[draws].mean(1), (0.025, 0.975))
    ratio = (1 + ours) / (1 + theirs)
    return {
        "mean": float((ours - theirs).mean()), "low": float(low), "high": float(high),
        "won": float((ratio < 1 - TIE).mean()), "lost": float((ratio > 1 + TIE).mean()),
    }  # fmt: skip


def make_row(seeds: list[Result], best: bench.Numbers, on: list[Any]) -> dict[str, Any]:
    """The measures of an attack with a budget: means over its seeds; the course of the first."""
    first, n = seeds[0], len(seeds[0].trial.distance)
    here = best[:n]
    each = [bench.summary(seed.trial, here) for seed in seeds]
    row = {
        key: float(np.mean([one[key] for one in each])) if isinstance(each[0][key], float) else each[0][key]
        for key in each[0]
    }
    shares = [excesses(seed.trial.distance, here) for seed in seeds]
    size = len(bench.grid(first.trial.budget))
    course = bench.anytime(first.trial, here) if first.trial.curve.size else {"excess": [None] * size, "median": []}
    return {
        "attack": first.about["attack"], "settings": first.trial.attack, "budget": first.trial.budget, "n": n, **row,
        "excess_median": float(np.mean([np.median(share) for share in shares])),
        "excess_trimmed": float(np.mean([trim_mean(share, TRIM) for share in shares])),
        "seeds": [one["excess"] for one in each], "cut": any(seed.about["cut"] for seed in seeds),
        "on": on.index(first.about["on"]), "anytime": course,
    }  # fmt: skip


def make_record(results: list[Result], failed: Mapping[str, str]) -> dict[str, Any]:
    """The record of a (model, norm)."""
    best = pool(results)
    on = [json.loads(text) for text in sorted({json.dumps(r.about["on"], sort_keys=True) for r in results})]
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in sorted(results, key=lambda result: result.key):
        if result.about["attack"] != EARLIER:
            groups.setdefault((result.about["attack"], result.about["budget"]), []).append(result)
    rows = [make_row(seeds, best, on) for seeds in groups.values()]
    rows.sort(key=lambda row: (row["budget"], row["excess"]))
    for row in rows:
        peers = [r for r in rows if is_baseline(r) and (r["budget"], r["n"]) == (row["budget"], row["n"])]
        if row["attack"] == OURS and peers:
            mine, theirs = (
                np.mean([excesses(s.trial.distance, best[: row["n"]]) for s in groups[name, row["budget"]]], axis=0)
                for name in (OURS, peers[0]["attack"])
            )
            row["difference"] = {"to": peers[0]["attack"]} | compare(mine, theirs)
    about = results[0].about
    return {
        "model": about["model"], "norm": about["norm"], "n": len(best), "digest": about["digest"], "on": on,
        "pool": {"median": float(np.median(best)), "d_max": bench.max_distance(best), "runs": len(results)},
        "passes": {str(budget): bench.grid(budget).tolist() for budget in sorted({row["budget"] for row in rows})},
        "rows": rows, "failed": dict(failed),
    }  # fmt: skip


def write_records(results: Results, failed: Mapping[tuple[str, str], Mapping[str, str]]) -> list[dict[str, Any]]:
    """Both files and the records of all (model, norm) pairs, with their digests, in benchmarks/records or $OUT."""
    write_parquet(folder := Path(os.environ.get("OUT", RECORDS)), results)
    found, files = [], [folder / DISTANCES, folder / CURVES]
    for pair in sorted({key[:2] for key in results}):
        here = [result for key, result in results.items() if key[:2] == pair]
        if all(result.about["attack"] == EARLIER for result in here):
            continue
        found.append(make_record(here, failed.get(pair, {})))
        write(f"suite-{pair[0]}-{pair[1]}", round_numbers(found[-1], ".4g"), files=files)
    return found


def write_apart(results: Results) -> None:
    """Write apart.json: cells whose pool is themselves, with the distance of every sample."""
    records = []
    for pair in sorted({key[:2] for key in results}):
        here = [result for key, result in results.items() if key[:2] == pair]
        distances = {f"{each.key[2]}, {each.key[3]}": each.trial.distance.tolist() for each in here}
        records.append(make_record(here, {}) | {"distances": distances})
    write("apart", round_numbers(records, ".4g"))
