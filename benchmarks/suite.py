r"""Every attack against every other: models × norms × budgets, all counted and judged alike.

    PYTHONPATH=src:PEERS:benchmarks python benchmarks/suite.py --data mnist=mnist.npz cifar10=cifar10_test.npz \
        [--models mnist-cnn …] [--norms l2 linf l1] [--budgets 100 400 2000] [--only WORD …] [--samples 500]

Raw results go to ``--work``, a file a cell (attack, budget), so a run that was cut short goes on where it stopped; the
pooled best of a (model, norm) is over everything ever run there, also over cells that were run anew. After each cell
the record of its (model, norm) is written anew: benchmarks/records/suite-MODEL-NORM.json, or under $OUT. ``--again``
runs cells anew; ``--only-records`` writes the records from the raw files alone. ``--model NAME=SOURCE`` adds a model
that ``marginattack measure --model`` would open, on the data that the part of NAME before its first dash states.
"""

import argparse
import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from networks import NETWORKS, network
from peers import Absent, enlist, roster
from record import conditions, write
from torch import Tensor, nn

from marginattack.analysis import benchmarking as bench
from marginattack.attacks import Attack
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.problem import Finished
from marginattack.sources.networks import ZOO, zoo

NORMS, BUDGETS = ("l2", "linf", "l1"), (100, 400, 2000)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Subject(NamedTuple):
    """A model, and the data that it is for: the first part of its name."""

    name: str
    open: Callable[[], nn.Module]
    most: int = 500  # samples, where no other number is asked for

    @property
    def data(self) -> str:
        return self.name.split("-")[0]


def _efficientnet() -> nn.Module:
    from marginattack.reproduce.subjects import efficientnet

    return efficientnet()


def _other(source: str) -> nn.Module:
    from marginattack.sources.models import open_model

    return open_model(source).module


SUBJECTS = {
    subject.name: subject
    for subject in (
        *(Subject(name, lambda name=name: zoo(name)) for name in ZOO),  # type: ignore[misc]
        *(Subject(name, lambda name=name: network(name)) for name in NETWORKS),  # type: ignore[misc]
        Subject("imagenet-efficientnet-lite0", _efficientnet, most=100),
    )
}


def read(paths: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of .npz files with x and y, or x_test and y_test."""
    parts = []
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            end = "_test" if "x_test" in arrays else ""
            x, y = torch.from_numpy(arrays[f"x{end}"]), torch.from_numpy(arrays[f"y{end}"])
        parts.append(((x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)).float() / 255, y.long()))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


class Arena(NamedTuple):
    """A model with the samples that every contender gets."""

    subject: Subject
    classifier: Classifier
    images: Tensor
    labels: Tensor
    digest: str  # of the weights and the samples: raw results of another arena are not mixed in


def arena(subject: Subject, data: dict[str, list[str]], samples: int | None, chunk: int) -> Arena:
    """The first samples that the model classifies rightly."""
    from marginattack.sources.data import SAMPLES
    from marginattack.sources.data import samples as bundled

    if subject.data not in data and subject.data not in SAMPLES:
        raise SystemExit(f"{subject.name} needs its data: give --data {subject.data}=FILE.npz")
    images, labels = read(data[subject.data]) if subject.data in data else bundled(subject.data)
    classifier = Classifier(subject.open().to(DEVICE), chunk=chunk)
    with classifier.held():
        images, labels = bench.first_right(
            classifier, lambda rows: (images[list(rows)], labels[list(rows)]), len(images), samples or subject.most
        )
    digest = hashlib.sha256()
    for tensor in (*classifier.model.state_dict().values(), images, labels):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return Arena(subject, classifier, images, labels, digest.hexdigest()[:16])


def cell_file(work: Path, place: Arena, norm: str, name: str, budget: int) -> Path:
    folder = work / f"{place.subject.name}-{norm}-{place.digest}"
    return folder / f"{name.replace(':', '_')}-{budget}.npz"


def save(path: Path, name: str, trial: bench.Trial, *, limit: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "name": name, "attack": trial.attack, "budget": trial.budget, "rejected": trial.rejected,
        "seconds": trial.seconds, "device": DEVICE, "cut": trial.seconds >= 0.98 * limit, "on": conditions(),
    }  # fmt: skip
    scratch = path.with_suffix(".tmp.npz")
    np.savez_compressed(
        scratch, distance=trial.distance, curve=trial.curve.astype(np.float32), forwards=trial.forwards,
        backwards=trial.backwards, about=np.array(json.dumps(about)),
    )  # fmt: skip
    scratch.replace(path)


def load(path: Path) -> tuple[dict[str, Any], bench.Trial]:
    with np.load(path, allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        trial = bench.Trial(
            attack=about["attack"], budget=about["budget"], distance=arrays["distance"],
            curve=arrays["curve"].astype(np.float64), forwards=arrays["forwards"], backwards=arrays["backwards"],
            rejected=about["rejected"], seconds=about["seconds"],
        )  # fmt: skip
    return about, trial


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends an attack that takes longer; what it has found by then counts. Some peers can search without end."""

    def late(*_: object) -> None:
        raise Finished

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1), 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_cell(place: Arena, norm: str, attack: Attack, budget: int, batch: int, limit: float) -> bench.Trial | str:
    """A trial, or why it failed."""
    deadline = time.monotonic() + limit
    try:
        with place.classifier.held():
            images, labels, _ = place.classifier.accept(place.images, place.labels)
            return bench.trial(
                place.classifier, images, labels, as_norm(norm), attack, budget=budget, batch=batch,
                guard=lambda: within(deadline - time.monotonic()),
            )  # fmt: skip
    except Exception as error:  # a peer may fail in any way; it is listed with the reason, and the next one runs
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def record(work: Path, place: Arena, norm: str, failed: dict[str, str]) -> dict[str, Any]:
    """The record of a (model, norm) from all its raw files."""
    folder = cell_file(work, place, norm, "", 0).parent
    cells = [load(path) for path in sorted(folder.glob("*.npz")) if not path.name.endswith(".tmp.npz")]
    best = pool(folder / "pool.npy", bench.pooled([trial for _, trial in cells]))
    on = [json.loads(text) for text in sorted({json.dumps(about["on"], sort_keys=True) for about, _ in cells})]
    rows = [
        {
            "attack": about["name"], "settings": trial.attack, "budget": trial.budget, **bench.summary(trial, best),
            "cut": about["cut"], "on": on.index(about["on"]), "anytime": bench.anytime(trial, best),
        }
        for about, trial in cells
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["budget"], row["excess"]))
    numbers = {
        "model": place.subject.name, "norm": norm, "n": len(place.images), "digest": place.digest, "on": on,
        "pool": {"median": float(np.median(best)), "d_max": bench.furthest(best), "runs": len(cells)},
        "passes": {str(budget): bench.grid(budget).tolist() for budget in sorted({row["budget"] for row in rows})},
        "rows": rows, "failed": failed,
    }  # fmt: skip
    write(f"suite-{place.subject.name}-{norm}", rounded(numbers))
    return numbers


def pool(path: Path, best: bench.Numbers) -> bench.Numbers:
    """The pooled best, with what cells found that were run anew since."""
    if path.exists():
        best = np.minimum(best, np.load(path))
    np.save(path, best)
    return best


def rounded(value: Any) -> Any:
    """Four digits, and none for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value


def run_norm(place: Arena, norm: str, asked: argparse.Namespace) -> None:
    """All cells of a (model, norm)."""
    failed: dict[str, str] = {}
    names = [n for n in roster(norm, place.subject.data, aside=asked.aside) if any(word in n for word in asked.only)]
    for budget in [] if asked.only_records else asked.budgets:
        for name in names:
            path = cell_file(asked.work, place, norm, name, budget)
            if path.exists() and not asked.again:
                continue
            who = enlist(name, budget)
            began = time.perf_counter()
            result = (
                who.reason
                if isinstance(who, Absent)
                else run_cell(place, norm, who, budget, asked.batch, asked.limit_seconds)
            )
            if isinstance(result, str):
                failed[f"{name} {budget}"] = result
                print(f"{place.subject.name} {norm} {budget} {name}: failed: {result}", flush=True)
                continue
            save(path, name, result, limit=asked.limit_seconds)
            numbers = record(asked.work, place, norm, failed)
            row = next(row for row in numbers["rows"] if (row["attack"], row["budget"]) == (name, budget))
            print(
                f"{place.subject.name} {norm} {budget} {name}: excess {row['excess']:.4f}, "
                f"success {row['success']:.3f}, {time.perf_counter() - began:.1f} s",
                flush=True,
            )
    show(record(asked.work, place, norm, failed))


def show(numbers: dict[str, Any]) -> None:
    """The table of a (model, norm)."""
    print(f"\n{numbers['model']}, {numbers['norm']}, {numbers['n']} samples, pool of {numbers['pool']['runs']} runs")
    print("| budget | attack | optimality | excess | success | median | passes | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for row in numbers["rows"]:
        cells = (
            str(row["budget"]), row["attack"], f"{row['optimality']:.4f}", f"{row['excess']:.2%}",
            f"{row['success']:.1%}", f"{row['median']:.4g}", f"{row['forwards'] + row['backwards']:.0f}",
            f"{row['seconds']:.1f}",
        )  # fmt: skip
        print("| " + " | ".join(cells) + " |")
    for name, why in numbers["failed"].items():
        print(f"failed: {name}: {why}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--models", nargs="+", default=list(SUBJECTS))
    parser.add_argument("--model", nargs="*", default=[], metavar="NAME=SOURCE")
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, type=int)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--chunk", type=int, default=500, help="images a pass through the model")
    parser.add_argument("--work", type=Path, default=Path("carry/suite"))
    parser.add_argument("--limit-seconds", type=float, default=600, help="a cell, beyond which it is cut")
    parser.add_argument("--aside", action="store_true", help="also Boundary, JSMA and the one-pixel attack")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only-records", action="store_true")
    asked = parser.parse_args()
    data = {name: files.split(",") for name, _, files in (entry.partition("=") for entry in asked.data)}
    more = [entry.partition("=") for entry in asked.model]
    subjects = SUBJECTS | {name: Subject(name, lambda source=source: _other(source)) for name, _, source in more}  # type: ignore[misc]
    for name in [*asked.models, *(name for name, _, _ in more)]:
        place = arena(subjects[name], data, asked.samples, asked.chunk)
        for norm in asked.norms:
            run_norm(place, norm, asked)


if __name__ == "__main__":
    main()
