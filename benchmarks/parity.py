"""Compare every attack with a public implementation: the same settings, on digits that the bundled network gets right.

    python benchmarks/parity.py [--only SUBSTRING ...] [--digits N] [--peer foolbox|art|adv_lib|pyautoattack|none ...]

A record is written once all its comparisons have run. ``--only`` keeps the comparisons whose attack, norm, settings or
peer contains one of the words, ``--peer`` those with that library ("none": with our own attacks). Each side has a model
of its own that counts its passes. The count of ``measure`` includes its checks, 3 forwards per sample. Comparisons
whose library is missing are skipped; one that raises is reported, and the next one runs.

Where a side finds nothing the distance is infinite, which enters the median; means cover the samples that both sides
found. "ok": our median is at most 1 % above theirs, or our success rate at most 1 point below; for estimates, which are
not better when lower, the medians differ by at most 1 %.
"""

import argparse
import time
from collections import Counter, defaultdict
from importlib import import_module
from typing import Any

import numpy as np
import torch
from parity_common import Comparison, Inputs, Run
from record import DEVICE, CountingModel, correct_samples, round_numbers, write
from torch import Tensor

from marginattack.reproduce.markdown import table
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

MODULES = ("gradient", "classic", "sparse", "autoattack")
PEERS = ("foolbox", "art", "adv_lib", "pyautoattack", "none")
ESTIMATES = {"clever"}
# Records by attack, where it is not that of the module
OWN_RECORDS = {
    "DeepFool": "deepfool", "Carlini–Wagner": "cw", "L-BFGS": "lbfgs", "Boundary": "boundary", "square": "square",
    "apgd": "apgd", "clever": "clever",
}  # fmt: skip
COLUMNS = (
    "attack", "norm", "settings", "peer", "digits", "success, ours / theirs", "median, ours / theirs",
    "mean, ours / theirs", "passes per sample, ours / theirs", "seconds, ours / theirs", "compared", "verdict", "note",
)  # fmt: skip


def library_of(comparison: Comparison) -> str:
    """The library that a comparison needs, "none" for our own attacks."""
    return next((name for name in PEERS if comparison.peer.lower().startswith(name)), "none")


def record_of(module: str, comparison: Comparison) -> str:
    """The name of the record of a comparison; ℓ∞ of Carlini–Wagner, with another library, has its own."""
    name = OWN_RECORDS.get(
        comparison.attack.split("-")[0] if "apgd" in comparison.attack else comparison.attack, module
    )
    return f"parity_{name}_linf" if name == "cw" and comparison.norm == "linf" else f"parity_{name}"


def import_error(library: str) -> str:
    """Why a library cannot be imported; empty if it can."""
    try:
        if library != "none":
            import_module(library)
    except ImportError as error:
        return str(error)
    return ""


def run_side(run: Run, network: str, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, float]]:
    """One side of a comparison: its distances, and their statistics and cost."""
    model = CountingModel(zoo(network)).to(DEVICE).eval()
    torch.manual_seed(0)
    began = time.perf_counter()
    distance = run(Inputs(model, images, labels)).detach().double().cpu()
    seconds, n = time.perf_counter() - began, len(images)
    return distance, {
        "success": float(torch.isfinite(distance).double().mean()), "median": float(np.median(distance.numpy())),
        "forwards": model.forwards / n, "backwards": model.backwards / n, "seconds": seconds,
    }  # fmt: skip


def compare(comparison: Comparison, n: int) -> dict[str, Any]:
    """The numbers and the verdict of a comparison, or the error that it raised."""
    network = comparison.network
    images, labels = correct_samples(zoo(network).to(DEVICE), *samples("mnist"), min(n, comparison.digits))
    result = {key: getattr(comparison, key) for key in ("attack", "norm", "settings", "peer", "note")}
    result["n"] = len(images)
    try:
        sides = [run_side(run, network, images, labels) for run in (comparison.ours, comparison.theirs)]
    except Exception as error:
        return {**result, "verdict": f"error: {type(error).__name__}: {error}"}
    both = torch.isfinite(sides[0][0]) & torch.isfinite(sides[1][0])
    ours, theirs = (numbers | {"mean": float(distance[both].mean())} for distance, numbers in sides)
    good, difference = judge(comparison, ours, theirs)
    verdict = "ok"
    if not good:
        word = "differs" if comparison.attack in ESTIMATES else "lower" if comparison.fixed else "higher"
        verdict = f"{word}: {comparison.note}" if comparison.note else word
    return {**result, "ours": ours, "theirs": theirs, "compared": difference, "verdict": verdict}


def judge(comparison: Comparison, ours: dict[str, float], theirs: dict[str, float]) -> tuple[bool, str]:
    """Whether ours is as good, and the difference."""
    if comparison.fixed:
        gain = ours["success"] - theirs["success"]
        return gain >= -0.01 - 1e-9, f"success {100 * gain:+.1f} points"
    ratio = ours["median"] / theirs["median"] if theirs["median"] else float("nan")
    good = abs(ratio - 1) <= 0.01 if comparison.attack in ESTIMATES else ours["median"] <= 1.01 * theirs["median"]
    return good, f"median × {ratio:.4f}"


def cells(result: dict[str, Any]) -> list[str]:
    """A result as the cells of a table."""
    first = [str(result[key]) for key in ("attack", "norm", "settings", "peer", "n")]
    if "ours" not in result:
        return [*first, *[""] * (len(COLUMNS) - len(first) - 2), result["verdict"], result["note"]]
    sides = result["ours"], result["theirs"]
    success, median, mean, seconds = (
        " / ".join(form.format(side[key]) for side in sides)
        for key, form in (("success", "{:.1%}"), ("median", "{:.4f}"), ("mean", "{:.4f}"), ("seconds", "{:.1f}"))
    )
    passes = " / ".join(f"{side['forwards']:.0f} f + {side['backwards']:.0f} b" for side in sides)
    note = result["note"] if result["verdict"] == "ok" else ""  # any other verdict contains it
    return [*first, success, median, mean, passes, seconds, result["compared"], result["verdict"], note]


def main() -> None:
    """Run the chosen comparisons, write the records of which all have run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="SUBSTRING")
    parser.add_argument("--digits", type=int, default=200)
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=PEERS)
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # for both sides, as in measure()
    correct_samples(zoo("mnist-cnn").to(DEVICE), *samples("mnist", 1))  # the first use of a GPU is slow
    rows, results, wanted = [], defaultdict[str, list[Any]](list), Counter[str]()
    for module in MODULES:
        for comparison in import_module(f"parity_{module}").COMPARISONS:
            record = record_of(module, comparison)
            wanted[record] += 1
            name = f"{comparison.attack} {comparison.norm} {comparison.settings} {comparison.peer}"
            library = library_of(comparison)
            if library not in options.peer or not any(word.lower() in name.lower() for word in options.only):
                continue
            if reason := import_error(library):
                print(f"skipped: {name}: {reason}", flush=True)
                continue
            results[record].append(compare(comparison, options.digits))
            rows.append(cells(results[record][-1]))
            print(" | ".join(rows[-1]), flush=True)
    for record, found in results.items():
        if len(found) == wanted[record]:
            write(record, round_numbers(found, ".6f"))
        else:
            print(f"{record} is not written: {len(found)} of its {wanted[record]} comparisons were run")
    print("\n".join(["", *table(COLUMNS, [[cell.replace("|", "\\|") for cell in row] for row in rows])]))


if __name__ == "__main__":
    main()
