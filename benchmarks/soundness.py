"""That no certificate is wrong: bounds of random networks against exact margins, grids, attacks and random points.

    PYTHONPATH=src:benchmarks:tests/bounds python benchmarks/soundness.py

Bounds are computed without knowing the attack's margins, so that nothing keeps a wrong one below them. Each is compared
with the nearest adversarial point of an attack, as a whole and towards that point's class; for small ReLU networks with
the exact margin towards each class (enumeration of all activation patterns); for networks of two inputs with the
nearest of 401 × 401 points of each class. The model is evaluated at random points inside the certified balls.

To show that wrong bounds would be seen, the same comparisons are repeated with faults put into the code on purpose.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from random_networks import KINDS, random_inputs, random_network
from record import write
from references import exact_margins
from torch import Tensor, nn

import marginattack as ma
from marginattack.bounds.propagation import Propagation
from marginattack.bounds.relaxations import MaxPool, ReLU, Smooth
from marginattack.bounds.search import _Search
from marginattack.core.norms import NORMS

METHODS = ("ibp", "crown", "alpha", "exact", "lipschitz")
BALLS = ("l1", "l2", "linf")
EXACT = ("relu", "leaky", "large logits")  # kinds with few enough activation patterns
SOLVED = 2  # inputs per network for method="exact", which is slow where nothing is known
SECONDS = 0.5  # of CPU time per input of these
SIDE = 401  # points of a grid per axis
ROUNDING = 1e-9  # of distances
SOLVER = 1e-7  # of the reference's linear programs
TOLERANCE = 1e-3  # the certified radius is this near to one that failed


@dataclass
class Tally:
    """What was compared, and what was wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)  # bounds above 0, by method
    wrong: Counter[str] = field(default_factory=Counter)
    shares: list[float] = field(default_factory=list)  # best lower bound over the attack's margin

    def compare(self, what: str, certified: Tensor, reference: Tensor, slack: float = ROUNDING) -> None:
        """Count certified radii and those of them beyond a distance at which another class is known to lead."""
        known = torch.isfinite(reference)
        self.counts[f"compared with {what}"] += int(known.sum())
        self.wrong[what] += int((known & (certified > reference * (1 + slack) + slack)).sum())


def points_in(x: Tensor, radius: Tensor, norm: str, count: int, seed: int) -> Tensor:
    """Random points of each ball and the box, half of them at the border: (n, count, *shape)."""
    generator = torch.Generator().manual_seed(seed)
    flat = x.double().flatten(1)
    noise = torch.randn(len(x), count, flat.shape[1], generator=generator, dtype=torch.float64)
    noise[:, ::2] = noise[:, ::2].sign() if norm == "linf" else noise[:, ::2]
    size = NORMS[norm].size(noise.flatten(0, 1)).view(len(x), count, 1)
    length = torch.rand(len(x), count, 1, generator=generator, dtype=torch.float64)
    length[:, ::2] = 1 - 1e-6
    inside = flat[:, None] + length * radius.clamp(max=9.0)[:, None, None] * noise / size
    return inside.clamp(0, 1).to(x.dtype).view(len(x), count, *x.shape[1:])


def on_grid(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """The distance to the nearest point of a grid where each class is at least level with the label, (n, classes)."""
    axis = torch.linspace(0, 1, SIDE)
    grid = torch.cartesian_prod(axis, axis)
    logits = model(grid)
    rows = []
    for centre, label in zip(x, y, strict=True):
        size = NORMS[norm].size(grid.double() - centre.double())
        ahead = logits >= logits[:, label, None]
        rows.append(torch.where(ahead, size, torch.inf).amin(0))
        rows[-1][label] = torch.inf
    return torch.stack(rows)


def all_bounds(model: nn.Module, x: Tensor, y: Tensor, norm: str, methods: Sequence[str]) -> dict[str, ma.Brackets]:
    """The bounds by every method that covers the network; exact ones of the first inputs."""
    found = {}
    for method in methods:
        few = slice(SOLVED) if method == "exact" else slice(None)
        limit = SECONDS if method == "exact" else None
        try:
            found[method] = ma.bound(
                model, x[few], y[few], norm, method=method, tolerance=TOLERANCE, time_limit=limit
            )  # without upper: what is certified is certified alone
        except ma.InputError as error:
            if "piecewise linear" not in str(error) and "do not cover" not in str(error):
                raise
    return found


@dataclass(frozen=True, eq=False)
class Case:
    """A network, its inputs, and what is known of their margins: infinite where nothing is."""

    model: nn.Module
    x: Tensor
    y: Tensor
    attack: ma.Margins
    exact: Tensor  # (n, classes)
    grid: Tensor


@cache
def make_case(kind: str, seed: int, norm: str, n: int) -> Case:
    """The network of this seed, attacked, and solved where that is cheap."""
    model, x = random_network(kind, seed), random_inputs(kind, n, seed)
    logits = model(x)
    y = logits.argmax(1)
    attack = ma.measure(model, x, y, norm, budget=200, diagnose=False)
    exact = grid = torch.full(logits.shape, torch.inf, dtype=torch.float64)
    if kind in EXACT:
        rows = [torch.from_numpy(exact_margins(model, x[i], int(y[i]), norm)) for i in range(n)]
        exact = torch.stack(rows)
    elif x[0].numel() == 2:
        grid = on_grid(model, x, y, norm)
    return Case(model, x, y, attack, exact, grid)


def examine(kind: str, seed: int, norm: str, n: int, points: int, methods: Sequence[str], tally: Tally) -> None:
    """Compare the bounds of one network with everything that is known about its margins."""
    case = make_case(kind, seed, norm, n)
    model, x, y, attack = case.model, case.x, case.y, case.attack
    if kind in EXACT:
        tally.compare("the exact margin, from above", case.exact.amin(1), attack.distance, 1e-5)
    best = torch.zeros(n, dtype=torch.float64)
    tally.counts["triples"] += n
    tally.counts["triples with an exact margin"] += n if kind in EXACT else 0
    tally.counts["triples with a grid"] += n if x[0].numel() == 2 else 0
    tally.counts["triples with an adversarial point"] += int(attack.success.sum())
    for method, found in all_bounds(model, x, y, norm, methods).items():
        m, towards = len(found), found.per_class
        tally.methods[method] += int((found.lower > 0).sum())
        tally.compare("an attack", found.lower, attack.distance[:m])
        class_ = attack.adversarial_label[:m, None]
        known = torch.where(attack.success[:m], attack.distance[:m], torch.inf)
        tally.compare("an attack's class", towards.gather(1, class_)[:, 0], known)
        for what, reference in (("an exact margin", case.exact), ("a grid", case.grid)):
            tally.compare(f"{what} towards a class", towards, reference[:m], SOLVER)
            tally.compare(what, found.lower, reference[:m].amin(1), SOLVER)
        if method == "exact" and kind in EXACT:
            tally.compare("the exact upper side", case.exact.amin(1)[:m], found.upper, 1e-5)
        best[:m] = torch.maximum(best[:m], found.lower)
    tally.shares += (best / attack.distance)[attack.success].tolist()
    inside = points_in(x, best, norm, points, seed)
    tally.counts["points"] += n * points
    tally.wrong["points"] += int((model(inside.flatten(0, 1)).argmax(1).view(n, points) != y[:, None]).sum())


@contextmanager
def fault(owner: type, name: str, change: Callable[..., Any]) -> Any:
    """A method replaced by one that gets the original as its first argument."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _lower_line(original: Any, *args: Any) -> Any:
    lines = original(*args)
    return replace(lines, upper_offset=lines.upper_offset - 0.1 * lines.upper_offset.abs())


def _larger_radii(original: Any, *args: Any) -> Any:
    return 1.05 * original(*args)


def _added_rounding(original: Any, *args: Any) -> Any:
    value, error = original(*args)
    return value + 2 * error, error


FAULTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "certified radii 5 % larger": (_Search, "run", _larger_radii),
    "rounding added, not subtracted": (Propagation, "concretise", _added_rounding),
    "upper line of ReLU 10 % lower": (ReLU, "lines", _lower_line),
    "upper line of max-pooling 10 % lower": (MaxPool, "lines", _lower_line),
    "upper line of smooth activations 10 % lower": (Smooth, "lines", _lower_line),
}


def run(seeds: Sequence[int], n: int, points: int, methods: Sequence[str]) -> Tally:
    """All kinds of networks in all norms."""
    tally = Tally()
    for kind in KINDS:
        for seed in seeds:
            for norm in BALLS:
                examine(kind, seed, norm, n, points, methods, tally)
        print(kind, tally.counts["triples"], dict(tally.wrong), flush=True)
    return tally


def main(seeds: int = 2, n: int = 30, points: int = 50) -> None:
    """Compare, compare again with faults, and write the record."""
    found = run(range(seeds), n, points, METHODS)
    faults = {}
    for name, (owner, method, change) in FAULTS.items():
        with fault(owner, method, change):
            seen = run([0], n, points, ["crown"])
        faults[name] = {"bounds": sum(seen.wrong.values()) - seen.wrong["points"], "points": seen.wrong["points"]}
        print(name, faults[name], flush=True)
    misclassified = found.wrong.pop("points")
    write("brackets-soundness", {
        "triples": found.counts["triples"], "counts": found.counts, "kinds": list(KINDS), "bounds": found.methods,
        "violations": sum(found.wrong.values()), "violations_by_reference": found.wrong,
        "points_in_certified_balls": found.counts["points"], "misclassified": misclassified,
        "median_share_of_attack": float(torch.tensor(found.shares).median()), "faults": faults,
    })  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    time.monotonic = time.process_time  # the clock of ma.bound's time_limit
    main(*map(int, sys.argv[1:]))
