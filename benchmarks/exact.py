r"""The default attack against exact margins of MNIST networks with 784 inputs.

    PYTHONPATH=src:benchmarks python benchmarks/exact.py solve [--processes 8]  # once: records/exact-margins.json
    PYTHONPATH=src:benchmarks python benchmarks/exact.py race                   # a minute or two: records/exact.json

``solve`` finds the exact margins of the first bundled digits that each network classifies correctly (exact_oracle.py),
from the attack's margin as upper bound. It resumes: what the record holds is not solved again; digits that are not
solved within ``--seconds`` are kept as unsolved, with the nearest point known. ``race`` measures these digits with the
default attack. ``--networks`` selects networks by a part of their name.
"""

import argparse
import multiprocessing
import time
from typing import Any

import numpy as np
import torch
from exact_oracle import GAP, solve
from networks import SMALL, network
from record import RECORDS, read, write
from torch import Tensor, nn

import marginattack as ma
from marginattack.reproduce.markdown import table
from marginattack.sources.data import samples

MARGINS = "exact-margins"
BUDGETS = (100, 400, 2000, 10_000)
NORMS = {"linf": 14, "l1": 5}  # digits per network, unless --digits says so


def digits(name: str, count: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, and the first digits that it classifies correctly: their numbers, images and labels."""
    model = network(name)
    images, labels = samples("mnist")
    with torch.no_grad():
        rows = (model(images).argmax(1) == labels).nonzero()[:count, 0]
    return model, rows, images[rows], labels[rows]


def solved() -> list[dict[str, Any]]:
    """The rows of the record of exact margins."""
    path = RECORDS / f"{MARGINS}.json"
    return list(read(path)[1]) if path.exists() else []


def solve_digit(task: tuple[str, str, int, float]) -> dict[str, Any]:
    """Solve one digit of a network in a norm, the one at this place among those that it classifies correctly."""
    name, norm, place, seconds = task
    torch.set_num_threads(1)
    model, numbers, images, labels = digits(name, place + 1)
    x, y = images[place:], labels[place:]
    upper = float(ma.measure(model, x, y, norm, budget=2000).distance[0])
    began = time.process_time()
    distance, exact = solve(model, x[0], int(y[0]), norm, upper, seconds)
    word = "exact" if exact else "unsolved"
    print(name, norm, int(numbers[place]), word, f"attack {upper / distance - 1:.3%} above", flush=True)
    return {
        "network": name, "norm": norm, "digit": int(numbers[place]), "distance": float(f"{distance:.7g}"),
        "exact": exact, "seconds": round(time.process_time() - began, 1), "solver": "HiGHS",
    }  # fmt: skip


def solve_digits(names: list[str], options: argparse.Namespace) -> None:
    """Solve what is missing, one digit of each network and norm in turn, so that a cut run has some of all."""
    rows = solved()
    if options.retry:
        rows = [row for row in rows if row["exact"] or row["network"] not in names or row["norm"] not in options.norms]
    known = {(row["network"], row["norm"], row["digit"]) for row in rows}
    counts = {norm: options.digits or NORMS[norm] for norm in options.norms}
    order = {name: digits(name, max(counts.values()))[1].tolist() for name in names}
    tasks = [
        (name, norm, place, options.seconds)
        for place in range(max(counts.values()))
        for norm in options.norms
        for name in names
        if place < counts[norm] and (name, norm, order[name][place]) not in known
    ]
    deadline = time.monotonic() + 60 * options.minutes
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        found = pool.imap_unordered(solve_digit, tasks)
        for _ in tasks:
            try:
                rows.append(found.next(timeout=deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            write(MARGINS, sorted(rows, key=lambda row: (row["network"], row["norm"], row["digit"])))


def measure(rows: list[dict[str, Any]], budgets: list[int]) -> list[dict[str, Any]]:
    """Excess of the default attack per network, norm and budget, over the digits that are solved."""
    found = []
    for name, norm in sorted({(row["network"], row["norm"]) for row in rows}):
        mine = {row["digit"]: row for row in rows if (row["network"], row["norm"]) == (name, norm)}
        images, labels = samples("mnist")
        chosen = [digit for digit, row in mine.items() if row["exact"]]
        exact = np.array([mine[digit]["distance"] for digit in chosen])
        for budget in budgets:
            excess: list[float] = []
            if chosen:
                margins = ma.measure(network(name), images[chosen], labels[chosen], norm, budget=budget)
                excess = (margins.distance.numpy() / exact - 1).tolist()
                print(name, norm, budget, f"{np.mean(excess):.3%}", f"worst {max(excess):.2%}", flush=True)
            found.append({"network": name, "norm": norm, "budget": budget, "unsolved": len(mine) - len(chosen),
                          "digits": chosen, "excess": [round(each, 6) for each in excess]})  # fmt: skip
    return found


def summarise(cells: list[dict[str, Any]], budgets: list[int]) -> list[dict[str, Any]]:
    """Over all networks, and per norm and kind of training."""
    groups = {"all": cells} | {
        f"{norm}, {training}": [c for c in cells if c["norm"] == norm and c["network"].endswith("-adv") == adv]
        for norm in NORMS for training, adv in (("plain", False), ("adversarial", True))
    }  # fmt: skip
    rows = []
    for group, members in groups.items():
        for budget in budgets:
            chosen = [c for c in members if c["budget"] == budget]
            excess = np.array([each for c in chosen for each in c["excess"]])
            if len(excess):
                rows.append({
                    "group": group, "budget": budget, "n": len(excess), "unsolved": sum(c["unsolved"] for c in chosen),
                    "mean": float(excess.mean()), "exact": float((excess <= 1e-3).mean()), "worst": float(excess.max()),
                    "least": float(excess.min()),
                })  # fmt: skip
    return rows


def race(names: list[str], budgets: list[int]) -> None:
    """Compare at every budget; write the record if all networks took part."""
    cells = measure([row for row in solved() if row["network"] in names], budgets)
    rows = summarise(cells, budgets)
    print("\n".join(format_table(rows)))
    if set(names) == set(SMALL):
        write("exact", {"gap": GAP, "summary": rows, "cells": cells})


def format_table(rows: list[dict[str, Any]]) -> list[str]:
    """The summary in Markdown."""
    header = ("group", "passes", "n", "unsolved", "mean excess", "within 0.1 %", "worst", "least")
    return table(header, [
        (r["group"], f"{r['budget']:,}", r["n"], r["unsolved"], f"{r['mean']:.3%}", f"{r['exact']:.1%}",
         f"{r['worst']:.2%}", f"{r['least']:.3%}") for r in rows
    ])  # fmt: skip


def main() -> None:
    """Solve, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("solve", "race"))
    parser.add_argument("--networks", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--norms", nargs="+", default=list(NORMS), choices=list(NORMS), help="to solve")
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS))
    parser.add_argument("--digits", type=int, help="to solve, per network and norm")
    parser.add_argument("--retry", action="store_true", help="solve what was not solved in time, too")
    parser.add_argument("--seconds", type=float, default=60, help="per digit")
    parser.add_argument("--minutes", type=float, default=25, help="in all")
    parser.add_argument("--processes", type=int, default=1, help="to solve")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in SMALL if any(word in name for word in options.networks)]
    if options.what == "solve":
        solve_digits(names, options)
    else:
        race(names, options.budgets)


if __name__ == "__main__":
    main()
