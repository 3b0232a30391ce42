"""``Series``: the stored results of one attack under one norm, read from a run folder."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marginattack.analysis import statistics
from marginattack.errors import InputError
from marginattack.storage.bounds import join_bounds
from marginattack.storage.parquet import read_metadata
from marginattack.storage.run_folder import Part, RunFolder

MAX_FEATURES = 200  # inputs of more features without names do not count as a table
SYMBOLS = {"l0": "ℓ0", "l1": "ℓ1", "l2": "ℓ2", "linf": "ℓ∞"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One attack under one norm in one run: its rows, and the number of samples evaluated."""

    store: RunFolder
    part: Part
    columns: dict[str, np.ndarray]  # as stored, with the ``shard`` of each row and its ``position`` in the shard
    seen: int  # samples evaluated, including misclassified ones that were not stored
    correct: int  # of these, correctly classified
    name: str = ""

    @property
    def norm(self) -> str:
        return self.part.norm

    @property
    def symbol(self) -> str:
        return SYMBOLS.get(self.norm, self.norm)

    @property
    def radius(self) -> float | None:
        """The radius within which the attack searched; None if it minimises the distance."""
        radius: float | None = self.store.manifest.get("radii", {}).get(self.part.attack)
        return radius

    @property
    def run_name(self) -> str:
        """The name of the run folder."""
        return self.store.path.name or str(self.store.path)

    def sample_name(self, row: int) -> str:
        """The name of a sample, such as its file, or its number in the data."""
        return str(self.columns["name"][row]) if "name" in self.columns else str(self.columns["id"][row])

    @cached_property
    def input_kind(self) -> str:
        """The kind of input: image, wave, table or other."""
        data = self.store.manifest["data"]
        shape = data["shape"]
        if len(shape) == 3 and shape[0] in (1, 3):
            return "image"
        if data.get("features") or (len(shape) == 1 and shape[0] <= MAX_FEATURES):
            return "table"
        return "wave" if len(shape) == 1 or (len(shape) == 2 and shape[0] <= 2) else "other"

    @cached_property
    def eight_bit(self) -> bool:
        """Whether the inputs are images whose pixels are multiples of 1/255, as far as the first ones show."""
        folder = self.store.file("images", self.part, 0).parent
        if self.input_kind != "image" or not folder.is_dir() or not len(self.columns["shard"]):
            return False
        shard = int(self.columns["shard"][0])
        first = min(4, int((self.columns["shard"] == shard).sum()))
        pixels = 255 * self.store.images(self.part, shard, range(first))["original"].double()
        return bool(((pixels - pixels.round()).abs() < 1e-3).all() and (pixels >= 0).all())

    @property
    def targeted(self) -> bool:
        return bool((self.columns["target"] >= 0).any())

    @cached_property
    def measured(self) -> np.ndarray:
        """Mask of the rows that have a margin: correctly classified ones, or all rows of a targeted attack."""
        return np.asarray((self.columns["label"] == self.columns["prediction"]) | self.targeted)

    @cached_property
    def found(self) -> np.ndarray:
        """Mask of the measured rows with an adversarial example other than the input itself."""
        return np.asarray(self.measured & np.isfinite(self.columns["distance"]) & (self.columns["distance"] > 0))

    @cached_property
    def margins(self) -> np.ndarray:
        """Margins of the measured rows; infinite if no adversarial example was found."""
        return np.asarray(self.columns["distance"][self.measured])

    @property
    def total(self) -> int:
        """Denominator of the robust accuracy."""
        return len(self.measured) if self.targeted else self.seen

    @property
    def accuracy(self) -> float:
        return self.correct / self.seen if self.seen else float("nan")

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        return statistics.proportion_interval(self.correct, self.seen)

    @cached_property
    def median(self) -> float:
        return statistics.median_or_nan(self.margins)

    @cached_property
    def median_interval(self) -> tuple[float, float]:
        return statistics.median_interval(self.margins)

    @property
    def tenth_percentile(self) -> float:
        return statistics.lower_quantile(self.margins, 0.1)

    @property
    def not_found(self) -> int:
        """Number of measured rows without an adversarial example."""
        return int(np.isinf(self.margins).sum())

    @property
    def passes(self) -> float:
        """Mean number of forwards + backwards per measured row."""
        passes = (self.columns["forwards"] + self.columns["backwards"])[self.measured]
        return float(passes.mean()) if len(passes) else float("nan")

    @cached_property
    def classes(self) -> list[str]:
        """Names of all classes by number; repeated names get their number appended."""
        manifest = self.store.manifest
        known = manifest["model"].get("classes") or manifest["data"].get("classes") or []
        highest = max(int(self.columns[c].max(initial=-1)) for c in ("label", "prediction", "adversarial_label"))
        names = [str(known[i]) if i < len(known) else str(i) for i in range(max(highest + 1, len(known)))]
        repeated = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        return [f"{name} ({i})" if name in repeated else name for i, name in enumerate(names)]

    def robust_accuracy(self, eps: np.ndarray) -> list[statistics.RobustAccuracy]:
        """Return the robust accuracy at each eps."""
        return statistics.robust_accuracy(self.margins, self.total, eps)

    @property
    def bounded(self) -> bool:
        """Whether the run has bounds."""
        return "lower" in self.columns

    def certified_accuracy(self, eps: np.ndarray) -> list[float] | list[None]:
        """Return the share of samples that are certified up to each eps; None for each without bounds."""
        if not self.bounded:
            return [None] * len(eps)
        lower = np.sort(self.columns["lower"][self.measured])
        share: list[float] = ((len(lower) - np.searchsorted(lower, eps)) / max(self.total, 1)).tolist()
        return share


def read_runs(runs: Sequence[str | Path]) -> list[Series]:
    """Read all runs; name each series by what distinguishes it (model, data, attack, folder)."""
    if not runs:
        raise InputError("no run given: pass at least one folder written by `measure --out`")
    loaded: list[Series] = []
    for store in map(RunFolder, dict.fromkeys(map(str, runs))):
        loaded += load_series(store)
    return [replace(series, name=name) for series, name in zip(loaded, _distinct_names(loaded), strict=True)]


def load_series(store: RunFolder) -> list[Series]:
    """Read the finished shards of a run; parts without any are left out."""
    tables: dict[Part, dict[int, Any]] = defaultdict(dict)
    for shard, part, table in store.read_all():
        tables[part][shard] = join_bounds(store, part, shard, table)
    loaded = []
    for part in filter(tables.__contains__, store.parts):
        shards = tables.pop(part)
        columns = {
            name: np.concatenate([table.column(name).to_numpy() for table in shards.values()])
            for name in next(iter(shards.values())).column_names
            if name not in ("attack", "norm")
        }
        columns["shard"] = np.repeat([*shards], [len(table) for table in shards.values()])
        columns["position"] = np.concatenate([np.arange(len(table)) for table in shards.values()])
        counts = [read_metadata(table) for table in shards.values()]
        seen, correct = (sum(count[name] for count in counts) for name in ("seen", "right"))
        loaded.append(Series(store=store, part=part, columns=columns, seen=seen, correct=correct))
    return loaded


def group_by_norm(every: Sequence[Series]) -> dict[str, list[Series]]:
    """Group series by norm, in the order of ``SYMBOLS``, then by first appearance."""
    norms = dict.fromkeys([*SYMBOLS, *(series.norm for series in every)])
    groups = {norm: [series for series in every if series.norm == norm] for norm in norms}
    return {norm: group for norm, group in groups.items() if group}


def _distinct_names(every: Sequence[Series]) -> list[str]:
    """Name each series by as few of model, data, attack and folder as distinguish it from the others of its norm."""
    models, data = ([series.store.manifest[key]["name"] for series in every] for key in ("model", "data"))
    attacks, paths = [series.part.attack for series in every], [str(series.store.path) for series in every]
    short = len({*paths}) == len({series.run_name for series in every})
    folders = [series.run_name for series in every] if short else paths
    table = list(zip(models, data, attacks, folders, strict=True))
    differs = [len(set(column)) > 1 for column in zip(*table, strict=True)]
    for wanted in ((0,), (1,), (2,), (0, 2), (0, 1), (0, 1, 2), (3,), (3, 2), (0, 1, 2, 3)):
        used = [i for i in wanted if differs[i]] or [3]
        names = [" · ".join(row[i] for i in used) for row in table]
        if len({(name, series.norm) for name, series in zip(names, every, strict=True)}) == len(every):
            return names
    return [f"{i + 1}: {name}" for i, name in enumerate(names)]
