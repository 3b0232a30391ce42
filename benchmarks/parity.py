"""Every attack against a public implementation with the same settings, on digits that the bundled network gets right.

    python benchmarks/parity.py [--only SUBSTRING ...] [--digits N] [--peer foolbox|art|none ...]

``--only`` keeps the rows whose attack, norm, settings or peer contains one of the words, ``--peer`` those that stand
against that library ("none": against our own attacks). Each side gets a model of its own that counts its passes, ours
and theirs alike. The count of ``measure`` holds its checks: 3 forwards a sample before and after the attack. Rows whose
library is missing are skipped; a row that raises is reported and the next one runs.

Where a side finds nothing the distance is infinite, and that enters the median; means are over the samples that both
sides found. "ok": our median is at most 1 % above theirs, or our success rate at most 1 point below; of estimates,
which are no better for being lower, the medians differ by at most 1 %.
"""

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from record import Counted, write
from rows import Bench, Row
from torch import Tensor

from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

MODULES = ("gradient", "classic", "sparse")
PEERS = ("foolbox", "art", "none")
ESTIMATES = {"clever"}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = (
    "attack", "norm", "settings", "peer", "digits", "success, ours / theirs", "median, ours / theirs",
    "mean, ours / theirs", "passes a sample, ours / theirs", "seconds, ours / theirs", "compared", "verdict", "note",
)  # fmt: skip


def peer_of(row: Row) -> str:
    """The library that a row needs, "none" where it stands against our own."""
    return next((name for name in PEERS if row.peer.lower().startswith(name)), "none")


def missing(library: str) -> str:
    """Why a library cannot be used here; empty where it can."""
    try:
        if library != "none":
            import_module(library)
    except ImportError as error:
        return str(error)
    return ""


def first_right(n: int) -> tuple[Tensor, Tensor]:
    """The first n bundled digits that the bundled network classifies rightly."""
    model, (images, labels) = zoo("mnist-cnn").to(DEVICE), samples("mnist")
    with torch.no_grad():
        right = torch.cat([model(part.to(DEVICE)).argmax(1).cpu() for part in images.split(250)]) == labels
    return images[right][:n].to(DEVICE), labels[right][:n].to(DEVICE)


def timed(side: Callable[[Bench], Tensor], images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, float]]:
    """One side of a row: its distances, and what they cost."""
    model = Counted(zoo("mnist-cnn")).to(DEVICE).eval()
    torch.manual_seed(0)
    begun = time.perf_counter()
    distance = side(Bench(model, images, labels)).detach().double().cpu()
    seconds = time.perf_counter() - begun
    n = len(images)
    cost = {"forwards": model.forwards / n, "backwards": model.backwards / n, "seconds": seconds}
    return distance, {
        "success": float(torch.isfinite(distance).double().mean()),
        "median": float(np.median(distance.numpy())),
        **cost,
    }


def compared(row: Row, n: int) -> dict[str, Any]:
    """A row as numbers and a verdict, or with the error that it raised."""
    named = {"attack": row.attack, "norm": row.norm, "settings": row.settings, "peer": row.peer, "note": row.note}
    images, labels = first_right(min(n, row.digits))
    try:
        (distance, ours), (their_distance, theirs) = (timed(side, images, labels) for side in (row.ours, row.theirs))
    except Exception as error:
        return {**named, "n": len(images), "verdict": f"error: {type(error).__name__}: {error}"}
    both = torch.isfinite(distance) & torch.isfinite(their_distance)
    for side, of in ((ours, distance), (theirs, their_distance)):
        side["mean"] = float(of[both].mean())
    good, difference = judged(row, ours, theirs)
    if good:
        verdict = "ok"
    else:
        word = "differs" if row.attack in ESTIMATES else "lower" if row.fixed else "higher"
        verdict = f"{word}: {row.note}" if row.note else word
    return {**named, "n": len(images), "ours": ours, "theirs": theirs, "compared": difference, "verdict": verdict}


def judged(row: Row, ours: dict[str, float], theirs: dict[str, float]) -> tuple[bool, str]:
    """Whether ours is as good, and the number that says so."""
    if row.fixed:
        more = ours["success"] - theirs["success"]
        return more >= -0.01 - 1e-9, f"success {100 * more:+.1f} points"
    ratio = ours["median"] / theirs["median"] if theirs["median"] else float("nan")
    good = abs(ratio - 1) <= 0.01 if row.attack in ESTIMATES else ours["median"] <= 1.01 * theirs["median"]
    return good, f"median × {ratio:.4f}"


def line(result: dict[str, Any]) -> list[str]:
    """A result as the cells of a table."""
    cells = [str(result[key]) for key in ("attack", "norm", "settings", "peer", "n")]
    if "ours" not in result:
        return [*cells, *[""] * (len(COLUMNS) - len(cells) - 2), result["verdict"], result["note"]]
    sides = result["ours"], result["theirs"]
    success, median, mean, seconds = (
        " / ".join(form.format(side[key]) for side in sides)
        for key, form in (("success", "{:.1%}"), ("median", "{:.4f}"), ("mean", "{:.4f}"), ("seconds", "{:.1f}"))
    )
    passes = " / ".join(f"{side['forwards']:.0f} f + {side['backwards']:.0f} b" for side in sides)
    note = result["note"] if result["verdict"] == "ok" else ""  # any other verdict holds it
    return [*cells, success, median, mean, passes, seconds, result["compared"], result["verdict"], note]


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS), *(line(result) for result in results)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows)


def recordable(value: Any) -> Any:
    """Numbers that JSON has: none for infinity and NaN."""
    if isinstance(value, dict):
        return {key: recordable(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return round(value, 6) if abs(value) < float("inf") else None
    return value


def main() -> None:
    """Run the rows that are asked for, write a record a module, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="SUBSTRING")
    parser.add_argument("--digits", type=int, default=200)
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=PEERS)
    asked = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # as measure() does: for both sides
    first_right(1)  # a GPU's first use is slow: no row shall bear it
    every: list[dict[str, Any]] = []
    for module in MODULES:
        rows: list[Row] = import_module(f"parity_{module}").ROWS
        results = []
        for row in rows:
            name, peer = f"{row.attack} {row.norm} {row.settings} {row.peer}", peer_of(row)
            if peer not in asked.peer or not any(word.lower() in name.lower() for word in asked.only):
                continue
            if why := missing(peer):
                print(f"skipped: {name}: {why}", flush=True)
                continue
            results.append(compared(row, asked.digits))
            print(" | ".join(line(results[-1])), flush=True)
        if results:
            write(f"parity_{module}", [recordable(result) for result in results])
            every += results
    print("\n" + table(every))


if __name__ == "__main__":
    main()
