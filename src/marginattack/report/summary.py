"""The numbers of a report: what stored runs say, one ``Series`` a part of a run, and nothing about how it looks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from marginattack.analysis import statistics as stats
from marginattack.errors import InputError
from marginattack.storage.run_folder import Part, RunFolder

SYMBOL = {"l0": "ℓ0", "l1": "ℓ1", "l2": "ℓ2", "linf": "ℓ∞"}
FEWEST = 8  # right samples of a class that it takes to call one of them unusual
UNUSUAL = -3.0  # robust standard deviations of the log margin below the class's median
LISTED = 24  # samples to look at, a series at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One part of one run: one attack under one norm, its rows and how they came about."""

    store: RunFolder
    part: Part
    columns: dict[str, np.ndarray]  # as in the store, with the ``shard`` of each row and its ``place`` therein
    seen: int  # samples looked at, those included that the run left out as misclassified
    right: int  # of them classified rightly
    shards: int  # that are finished
    name: str = ""

    @property
    def targeted(self) -> bool:
        return bool((self.columns["target"] >= 0).any())

    @cached_property
    def held(self) -> np.ndarray:
        """Which rows have a margin to speak of: those classified rightly, or any row of a targeted run."""
        if self.targeted:
            return np.ones(len(self.columns["label"]), bool)
        held: np.ndarray = self.columns["label"] == self.columns["prediction"]
        return held

    @cached_property
    def found(self) -> np.ndarray:
        """Which of them have one that was found."""
        found: np.ndarray = self.held & np.isfinite(self.columns["distance"]) & (self.columns["distance"] > 0)
        return found

    @cached_property
    def margins(self) -> np.ndarray:
        """The margins of the held rows; infinite where nothing was found."""
        margins: np.ndarray = self.columns["distance"][self.held]
        return margins

    @property
    def total(self) -> int:
        """What robust accuracy is a share of."""
        return len(self.held) if self.targeted else self.seen

    @property
    def accuracy(self) -> float:
        return self.right / self.seen if self.seen else float("nan")

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        return stats.share(self.right, self.seen)

    @cached_property
    def median(self) -> float:
        return float(np.median(self.margins)) if len(self.margins) else float("nan")

    @cached_property
    def median_interval(self) -> tuple[float, float]:
        return stats.median(self.margins)

    @property
    def missed(self) -> int:
        """Held rows for which nothing was found."""
        return int(np.isinf(self.margins).sum())

    @property
    def passes(self) -> float:
        """Forwards + backwards a held row, on average."""
        spent = (self.columns["forwards"] + self.columns["backwards"])[self.held]
        return float(spent.mean()) if len(spent) else float("nan")

    @property
    def planned(self) -> int:
        return len(self.store.shards)

    @property
    def classes(self) -> list[str]:
        """The name of every class that occurs, by number; distinct."""
        manifest = self.store.manifest
        known = manifest["model"].get("classes") or manifest["data"].get("classes") or []
        highest = max(int(self.columns[c].max(initial=-1)) for c in ("label", "prediction", "adversarial_label"))
        names = [str(known[i]) if i < len(known) else str(i) for i in range(max(highest + 1, len(known)))]
        twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        return [f"{name} ({i})" if name in twice else name for i, name in enumerate(names)]

    def holding(self, eps: np.ndarray) -> np.ndarray:
        """How many samples are classified rightly and further than each eps from the boundary."""
        ordered = np.sort(self.margins)
        return len(ordered) - np.searchsorted(ordered, eps, side="right")

    def robust(self, eps: float) -> float:
        return float(self.holding(np.array([eps]))[0]) / self.total if self.total else float("nan")


def read(runs: Sequence[str | Path]) -> list[Series]:
    """Every part of every run that has a finished shard, named by what sets them apart."""
    if not runs:
        raise InputError("no run is given: name at least one folder that `measure --out` wrote")
    every = [series for run in dict.fromkeys(map(str, runs)) for series in _parts(RunFolder(run))]
    for series, name in zip(every, _names(every), strict=True):
        object.__setattr__(series, "name", name)
    return every


def by_norm(every: Sequence[Series]) -> dict[str, list[Series]]:
    """The series of each norm, in the order of the norms' names in ``SYMBOL``."""
    order = [*SYMBOL, *{series.part.norm for series in every} - set(SYMBOL)]
    groups = {norm: [series for series in every if series.part.norm == norm] for norm in order}
    return {norm: group for norm, group in groups.items() if group}


def _parts(store: RunFolder) -> Iterator[Series]:
    finished = {part: _finished(store, part) for part in store.parts}
    if not any(finished.values()):
        store.table()  # which says that nothing is finished
    for part, shards in finished.items():
        if shards:
            yield _series(store, part, shards)


def _finished(store: RunFolder, part: Part) -> list[int]:
    return [shard for shard in range(len(store.shards)) if store.file("margins", part, shard).exists()]


def _series(store: RunFolder, part: Part, shards: list[int]) -> Series:
    tables = [store.table(None, part, shard) for shard in shards]
    lengths = [len(table) for table in tables]
    columns = {
        name: np.concatenate([table.column(name).to_numpy(zero_copy_only=False) for table in tables])
        for name in tables[0].column_names
        if name not in ("attack", "norm")
    }
    columns["shard"] = np.repeat(shards, lengths)
    columns["place"] = np.concatenate([np.arange(length) for length in lengths])
    seen, right = store.count_samples(part)
    return Series(store=store, part=part, columns=columns, shards=len(shards), seen=seen, right=right)


def _names(every: Sequence[Series]) -> list[str]:
    """For each series, as few of model, data, attack and folder as tell it from the others of its norm."""

    def words(series: Series) -> list[str]:
        manifest, attack = series.store.manifest, series.part.attack
        settings = manifest["attacks"].get(attack, "")
        return [manifest["model"]["name"], manifest["data"]["name"], attack, settings, str(series.store.path)]

    table = [words(series) for series in every]
    differs = [len({row[i] for row in table}) > 1 for i in range(5)]
    for wanted in ((0,), (1,), (2,), (0, 2), (0, 1), (0, 1, 2), (0, 1, 2, 4)):
        used = [i for i in wanted if differs[i]] or [2]
        names = [" · ".join(row[i] for i in used) for row in table]
        keys = {(name, series.part.norm) for name, series in zip(names, every, strict=True)}
        if len(keys) == len(every):
            return names
    return [f"{i + 1}: {name}" for i, name in enumerate(names)]


def grid(group: Sequence[Series]) -> np.ndarray:
    """The ε at which curves are drawn: round ones, even ratios for a logarithmic axis, and the usual k/255 in ℓ∞."""
    found = np.concatenate([series.columns["distance"][series.found] for series in group])
    if len(found) == 0:
        return np.array([0.0, 1.0])
    top = reach(found)
    low = max(float(found.min()), top * 1e-4)
    half = step(top) / 2
    even, ratios = half * np.arange(top // half + 2), np.geomspace(low, top, 60)
    usual = np.arange(1, 17 if group[0].part.norm == "linf" else 1) / 255
    return np.unique([float(f"{eps:.4g}") for eps in np.concatenate([even, ratios, usual])])


def reach(found: np.ndarray) -> float:
    """How far the axes go: to the largest margin, unless a few stragglers would squeeze all the others."""
    return float(min(found.max() * 1.02, 2.5 * np.quantile(found, 0.99)))


def step(top: float, about: int = 48) -> float:
    """A round width for the bins of a histogram up to ``top``."""
    rough = top / about
    power = 10.0 ** np.floor(np.log10(rough))
    return float(min((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999), default=rough))


def quantile(values: np.ndarray, share: float) -> float:
    """The least value that so large a share is at or below; numpy's stumbles over infinite ones."""
    if len(values) == 0:
        return float("nan")
    return float(np.sort(values)[max(int(np.ceil(share * len(values))) - 1, 0)])


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """How one class fares."""

    number: int
    name: str
    n: int  # held
    missed: int
    low: float  # quartiles of the margins, infinite ones included
    median: float
    high: float
    goes_to: str  # the class that most of them go to
    share: float  # of those found


def class_rows(series: Series) -> list[ClassRow]:
    """One row a class that occurs."""
    names, rows = series.classes, []
    label, to, distance = (series.columns[name] for name in ("label", "adversarial_label", "distance"))
    for number in np.unique(label[series.held]).tolist():
        mine = series.held & (label == number)
        margins = distance[mine]
        ends = to[mine & series.found]
        count = np.bincount(ends) if len(ends) else np.zeros(1, int)
        low, high = quantile(margins, 0.25), quantile(margins, 0.75)
        rows.append(
            ClassRow(
                number=number, name=names[number], n=len(margins), missed=int(np.isinf(margins).sum()), low=low,
                median=float(np.median(margins)), high=high,
                goes_to=names[int(count.argmax())] if len(ends) else "", share=float(count.max() / max(len(ends), 1)),
            )
        )  # fmt: skip
    return rows


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A sample that is worth a look: its label may be wrong, or it may be ambiguous."""

    row: int  # in the columns
    why: str
    score: float  # the lower, the more unusual


def suspects(series: Series) -> list[Suspect]:
    """Rows whose margin is far below its class's, and rows that are misclassified with the greatest confidence.

    The first are found by a robust z-score of the log margin: (log d − median) / (1.4826 · median deviation).
    """
    label, distance, confidence = (series.columns[name] for name in ("label", "distance", "confidence"))
    unusual: list[Suspect] = []
    for number in np.unique(label[series.found]).tolist():
        mine = np.flatnonzero(series.found & (label == number))
        if len(mine) < FEWEST:
            continue
        logs = np.log(distance[mine])
        centre = np.median(logs)
        spread = max(1.4826 * float(np.median(np.abs(logs - centre))), 1e-6)
        z = (logs - centre) / spread
        for i in np.flatnonzero(z < UNUSUAL):
            why = f"{np.exp(logs[i] - centre):.2g} of its class's median margin (z = −{-z[i]:.1f})"
            unusual.append(Suspect(row=int(mine[i]), why=why, score=float(z[i])))
    wrong = [] if series.targeted else np.flatnonzero(label != series.columns["prediction"]).tolist()
    misread = [
        Suspect(row=i, why=f"misclassified with confidence {confidence[i]:.1%}", score=-float(confidence[i]))
        for i in wrong
    ]
    chosen = sorted(unusual, key=lambda each: each.score)[: LISTED // 2]
    return chosen + sorted(misread, key=lambda each: each.score)[: LISTED - len(chosen)]


def sentence(series: Series) -> list[str | float]:
    """What a reader would quote: words, and distances as numbers, for whoever writes them in some unit."""
    n, symbol = len(series.margins), SYMBOL.get(series.part.norm, series.part.norm)
    if n == 0:
        return ["The model gets none of these samples right, so there is no margin to measure."]
    who = f"the {n:,} samples" + (" that have a target" if series.targeted else " that the model gets right")
    if not np.isfinite(series.median):
        return [f"For {series.missed:,} of {who} no adversarial input was found in {symbol}."]
    where = ") of their target class." if series.targeted else ") of another class."
    low, high = series.median_interval
    return [f"Half of {who} are within {symbol} ", series.median, " (95 % interval ", low, " to ", high, where]
