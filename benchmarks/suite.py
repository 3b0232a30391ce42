r"""Compare all attacks on models × norms × budgets, counted and verified alike.

    PYTHONPATH=src:PACKAGES:benchmarks python benchmarks/suite.py --data mnist=mnist.npz cifar10=cifar10_test.npz \
        [--models mnist-cnn …] [--norms l2 linf l1] [--budgets 100 400 2000] [--only WORD …] [--samples 500]

Results go to ``--work``, a file per cell (attack, budget), so an interrupted run resumes where it stopped; the best
distances of a (model, norm) are over everything ever run there, including cells that were run again. After each cell
the record of its (model, norm) is rewritten: benchmarks/records/suite-MODEL-NORM.json, or under $OUT. ``--rerun`` runs
cells again; ``--only-records`` writes the records from the stored results alone. ``--model NAME=SOURCE`` adds a model
that ``marginattack measure --model`` opens; the part of NAME before its first dash is its data set.
"""

import argparse
import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from networks import NETWORKS, network
from record import DEVICE, conditions, correct_samples, round_numbers, write
from torch import Tensor, nn

from marginattack.analysis import benchmarking as bench
from marginattack.attacks.presets import PRESETS
from marginattack.core.budget import BudgetExhausted
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.execution.session import open_session
from marginattack.integrations import EXTERNAL_ATTACKS
from marginattack.reproduce.markdown import table
from marginattack.reproduce.models_under_test import load_efficientnet, read_npz
from marginattack.sources.data import SAMPLES, samples
from marginattack.sources.models import open_model
from marginattack.sources.networks import ZOO

NORMS, BUDGETS = ("l2", "linf", "l1", "l0"), (100, 400, 2000)
# Left out by default: Boundary runs one sample and one forward at a time, which takes hours for a budget of 2,000; JSMA
# and the one-pixel attack minimise the number of pixels, not a distance.
OPTIONAL = ("boundary", "jsma", "one-pixel")


def attack_names(norm: str, data: str, *, optional: bool = False) -> list[str]:
    """Our attacks, the paper's settings for this data and norm, and all external attacks that support the norm."""
    own = [name for name in bench.minimum_norm_attacks(norm) if optional or name not in OPTIONAL]
    presets = [f"preset:{name}" for name in PRESETS if name == f"{data}-{norm}"]
    return [*own, *presets, *(name for name, attack in EXTERNAL_ATTACKS.items() if norm in attack.supported_norms)]


class SuiteModel(NamedTuple):
    """A model of the suite; the first part of its name is its data set."""

    name: str
    open: Callable[[], nn.Module]
    samples: int = 500  # by default

    @property
    def data(self) -> str:
        return self.name.split("-")[0]

    def read(self, files: dict[str, list[str]]) -> tuple[Tensor, Tensor]:
        """The data set: from its files, or else the bundled samples."""
        if self.data in files:
            return read_npz(files[self.data])
        if self.data not in SAMPLES:
            raise SystemExit(f"{self.name} needs its data: give --data {self.data}=FILE.npz")
        return samples(self.data)


MODELS = {
    **{name: SuiteModel(name, partial(network, name)) for name in (*ZOO, *NETWORKS)},
    "imagenet-efficientnet-lite0": SuiteModel("imagenet-efficientnet-lite0", load_efficientnet, samples=100),
}


class Workload(NamedTuple):
    """A model with the samples that every attack gets."""

    model: SuiteModel
    classifier: Classifier
    images: Tensor
    labels: Tensor
    digest: str  # of the weights and the samples: results of another workload are not mixed in


def prepare(model: SuiteModel, files: dict[str, list[str]], count: int | None, chunk: int) -> Workload:
    """Open a model and choose the first samples that it classifies correctly."""
    images, labels = model.read(files)
    module = model.open().to(DEVICE).eval()
    images, labels = (part.cpu() for part in correct_samples(module, images, labels, count or model.samples))
    digest = hashlib.sha256()
    for tensor in (*module.state_dict().values(), images, labels):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return Workload(model, Classifier(module, batch_size=chunk), images, labels, digest.hexdigest()[:16])


def result_file(work: Path, workload: Workload, norm: str, name: str, budget: int) -> Path:
    """The file of a cell."""
    folder = work / f"{workload.model.name}-{norm}-{workload.digest}"
    return folder / f"{name.replace(':', '_')}-{budget}.npz"


def save(path: Path, name: str, trial: bench.Trial, *, limit: float) -> None:
    """Store the result of a cell."""
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
    """Read the result of a cell; older ones call ``rejected`` ``refuted``."""
    with np.load(path, allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        trial = bench.Trial(
            attack=about["attack"], budget=about["budget"], distance=arrays["distance"],
            curve=arrays["curve"].astype(np.float64), forwards=arrays["forwards"], backwards=arrays["backwards"],
            rejected=about["rejected"] if "rejected" in about else about["refuted"], seconds=about["seconds"],
        )  # fmt: skip
    return about, trial


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End an attack that takes longer, keeping what it has found: some external attacks can search without end."""

    def finish(*_: object) -> None:
        raise BudgetExhausted

    before = signal.signal(signal.SIGALRM, finish)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1), 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_cell(workload: Workload, norm: str, name: str, budget: int, batch: int, limit: float) -> bench.Trial | str:
    """The trial of an attack, or why it failed."""
    deadline, classifier = time.monotonic() + limit, workload.classifier
    try:
        attack = bench.attack_by_name(name, budget)
        with open_session(classifier) as session:
            return bench.run_trial(
                session, session.validate(workload.images, workload.labels), as_norm(norm), attack, budget=budget,
                batch=batch, guard=lambda: time_limit(deadline - time.monotonic()),
            )  # fmt: skip
    except Exception as error:  # an external attack may fail in any way; the reason is recorded, and the next one runs
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def write_record(work: Path, workload: Workload, norm: str, failed: dict[str, str]) -> dict[str, Any]:
    """Write the record of a (model, norm) from all its results."""
    folder = result_file(work, workload, norm, "", 0).parent
    cells = [load(path) for path in sorted(folder.glob("*.npz")) if not path.name.endswith(".tmp.npz")]
    best = update_best(folder / "pool.npy", bench.best_distances([trial for _, trial in cells]))
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
        "model": workload.model.name, "norm": norm, "n": len(workload.images), "digest": workload.digest, "on": on,
        "pool": {"median": float(np.median(best)), "d_max": bench.max_distance(best), "runs": len(cells)},
        "passes": {str(budget): bench.grid(budget).tolist() for budget in sorted({row["budget"] for row in rows})},
        "rows": rows, "failed": failed,
    }  # fmt: skip
    write(f"suite-{workload.model.name}-{norm}", round_numbers(numbers, ".4g"))
    return numbers


def update_best(path: Path, best: bench.Numbers) -> bench.Numbers:
    """The best distances, including those of earlier results of cells that were run again."""
    if path.exists():
        best = np.minimum(best, np.load(path))
    np.save(path, best)
    return best


def run_norm(workload: Workload, norm: str, options: argparse.Namespace) -> None:
    """Run all cells of a (model, norm)."""
    failed: dict[str, str] = {}
    model = workload.model
    names = attack_names(norm, model.data, optional=options.all_attacks)
    names = [name for name in names if any(word in name for word in options.only)]
    for budget in [] if options.only_records else options.budgets:
        for name in names:
            path = result_file(options.work, workload, norm, name, budget)
            if path.exists() and not options.rerun:
                continue
            began = time.perf_counter()
            result = run_cell(workload, norm, name, budget, options.batch, options.limit_seconds)
            if isinstance(result, str):
                failed[f"{name} {budget}"] = result
                print(f"{model.name} {norm} {budget} {name}: failed: {result}", flush=True)
                continue
            save(path, name, result, limit=options.limit_seconds)
            rows = write_record(options.work, workload, norm, failed)["rows"]
            row = next(row for row in rows if (row["attack"], row["budget"]) == (name, budget))
            measures = f"excess {row['excess']:.4f}, success {row['success']:.3f}"
            print(f"{model.name} {norm} {budget} {name}: {measures}, {time.perf_counter() - began:.1f} s", flush=True)
    print_table(write_record(options.work, workload, norm, failed))


def print_table(numbers: dict[str, Any]) -> None:
    """Print the table of a (model, norm)."""
    runs = numbers["pool"]["runs"]
    print(f"\n{numbers['model']}, {numbers['norm']}, {numbers['n']} samples, best distances over {runs} runs")
    rows = [
        (
            row["budget"], row["attack"], f"{row['optimality']:.4f}", f"{row['excess']:.2%}", f"{row['success']:.1%}",
            f"{row['median']:.4g}", f"{row['forwards'] + row['backwards']:.0f}", f"{row['seconds']:.1f}",
        )
        for row in numbers["rows"]
    ]  # fmt: skip
    header = ("budget", "attack", "optimality", "excess", "success", "median", "passes", "seconds")
    print("\n".join(table(header, rows)))
    for name, reason in numbers["failed"].items():
        print(f"failed: {name}: {reason}")


def main() -> None:
    """Run the chosen models and norms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--model", nargs="*", default=[], metavar="NAME=SOURCE")
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, type=int)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--chunk", type=int, default=500, help="images per pass through the model")
    parser.add_argument("--work", type=Path, default=Path("carry/suite"))
    parser.add_argument("--limit-seconds", type=float, default=600, help="time limit per cell")
    parser.add_argument("--all-attacks", action="store_true", help="include Boundary, JSMA and the one-pixel attack")
    parser.add_argument("--rerun", action="store_true")
    parser.add_argument("--only-records", action="store_true")
    options = parser.parse_args()
    files = {name: paths.split(",") for name, _, paths in (entry.partition("=") for entry in options.data)}
    added = {
        name: SuiteModel(name, lambda source=source: open_model(source).module)  # type: ignore[misc]
        for name, _, source in (entry.partition("=") for entry in options.model)
    }
    for name in [*options.models, *added]:
        workload = prepare((MODELS | added)[name], files, options.samples, options.chunk)
        for norm in options.norms:
            run_norm(workload, norm, options)


if __name__ == "__main__":
    main()
