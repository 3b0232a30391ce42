"""Classifiers whose margins are known, to test attacks with.

Each oracle is a model, inputs, labels, a box, and the exact distance of every input for a norm, found by means other
than the package's: bisection on the size of the ball, closed forms, mixed-integer programming.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

Array = NDArray[Any]


@dataclass(frozen=True)
class Oracle:
    """A classification problem with known answers."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    bounds: tuple[float, float]
    exact: Callable[[str], Array]


def bisected(reach: Callable[[Array], Array], need: Array, top: float) -> Array:
    """The least ρ with reach(ρ) ≥ need, for a growing reach; infinity where even ``top`` is too little."""
    low, high = np.zeros_like(need), np.full_like(need, top)
    for _ in range(200):
        middle = (low + high) / 2
        enough = reach(middle) >= need
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(reach(np.full_like(need, top)) >= need, high, np.inf)


def half_space(norm: str, g: Array, room: Array, need: Array) -> Array:
    """The distance to gᵀδ = −need when coordinate i can move by room i against the sign of g, row by row."""
    w = np.abs(g)
    if norm == "linf":
        return bisected(lambda rho: (w * np.minimum(rho[:, None], room)).sum(1), need, 1e3)
    if norm == "l1":
        order = np.argsort(-w, axis=1)
        w, room = np.take_along_axis(w, order, 1), np.take_along_axis(room, order, 1)
        before = np.cumsum(room, axis=1) - room
        return bisected(lambda rho: (w * np.clip(rho[:, None] - before, 0, room)).sum(1), need, 1e4)
    level = bisected(lambda rho: (w * np.minimum(rho[:, None] * w, room)).sum(1), need, 1e6)
    with np.errstate(invalid="ignore"):
        size = np.sqrt((np.minimum(level[:, None] * w, room) ** 2).sum(1))
    return np.where(np.isfinite(level), size, np.inf)


def linear(seed: int, *, n: int = 110, d: int = 30, classes: int = 5, boxed: bool, dtype: torch.dtype) -> Oracle:
    """A random linear classifier; with ``boxed`` the inputs lie in [0, 1], many of them near a bound."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.standard_normal((classes, d)), rng.standard_normal(classes)
    x = np.clip(rng.random((n, d)) * 1.4 - 0.2, 0, 1) if boxed else rng.standard_normal((n, d))
    model = nn.Linear(d, classes, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weight))
        model.bias.copy_(torch.from_numpy(bias))
    images = torch.from_numpy(x).to(dtype)
    w, b, x = (t.detach().double().numpy() for t in (model.weight, model.bias, images))
    logits = x @ w.T + b
    # Where the two highest logits nearly tie, their rounding in float32 alone moves the margin by more than 1e-4.
    top = np.sort(logits, axis=1)
    clear = top[:, -1] - top[:, -2] > 0.02 * np.abs(logits).max(1)
    x, logits, images = x[clear], logits[clear], images[torch.from_numpy(clear)]
    label, n = logits.argmax(1), len(x)

    def exact(norm: str) -> Array:
        answers = []
        for i in range(classes):
            g = w[label] - w[i]
            need = logits[np.arange(n), label] - logits[:, i]
            room = np.where(g > 0, x, 1 - x) if boxed else np.full_like(x, 1e6)
            answers.append(np.where(label == i, np.inf, half_space(norm, g, room, need)))
        return np.min(answers, axis=0)

    return Oracle(model, images, torch.from_numpy(label), (0.0, 1.0) if boxed else (-1e6, 1e6), exact)


class Ball(nn.Module):
    """Class 0 inside a sphere around the origin, class 1 outside."""

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        f = x.square().sum(1, keepdim=True) - self.radius**2
        return torch.cat([-f, f], dim=1) / 2


def sphere(seed: int, *, inside: bool, n: int = 50, d: int = 12) -> Oracle:
    """From inside a sphere out of it (the boundary bends towards the input), or from outside into it (away)."""
    rng = np.random.default_rng(seed)
    radius = 2.0
    v = rng.standard_normal((n, d))
    share = rng.uniform(*((0.3, 0.8) if inside else (1.3, 2.0)), (n, 1))
    v *= radius * share / np.linalg.norm(v, axis=1, keepdims=True)
    size = np.abs(v)

    def exact(norm: str) -> Array:
        if norm == "l2":
            return np.abs(np.linalg.norm(v, axis=1) - radius)
        one = size.sum(1)
        square = (size**2).sum(1)
        if inside and norm == "linf":  # Σ (|v| + ρ)² = R²
            return (-one + np.sqrt(one**2 - d * (square - radius**2))) / d
        if inside:  # l1: the largest coordinate alone grows
            largest = size.max(1)
            return np.sqrt(radius**2 - square + largest**2) - largest
        if norm == "linf":  # Σ max(|v| − ρ, 0)² = R²
            return bisected(
                lambda rho: -(np.maximum(size - rho[:, None], 0) ** 2).sum(1), np.full(n, -(radius**2)), 10.0
            )
        # l1: the largest coordinates come down to a common level τ with Σ min(|v|, τ)² = R²
        level = bisected(lambda tau: (np.minimum(size, tau[:, None]) ** 2).sum(1), np.full(n, radius**2), 10.0)
        return np.maximum(size - level[:, None], 0).sum(1)

    labels = torch.full((n,), 0 if inside else 1)
    return Oracle(Ball(radius), torch.from_numpy(v), labels, (-10.0, 10.0), exact)


class Paraboloid(nn.Module):
    """Class 1 beyond u·x = height + ½ bend ‖x − (u·x)u‖²."""

    def __init__(self, axis: Tensor, height: float, bend: float) -> None:
        super().__init__()
        self.axis, self.height, self.bend = axis, height, bend

    def forward(self, x: Tensor) -> Tensor:
        along = (x * self.axis).sum(1, keepdim=True)
        f = along - self.height - self.bend / 2 * (x.square().sum(1, keepdim=True) - along**2)
        return torch.cat([-f, f], dim=1)


def paraboloid(seed: int, bend: float, *, n: int = 40, d: int = 12) -> Oracle:
    """Inputs on the axis of a randomly turned paraboloid: its vertex is nearest while bend > −1 / distance (l2)."""
    rng = np.random.default_rng(seed)
    axis = rng.standard_normal(d)
    axis /= np.linalg.norm(axis)
    along = rng.uniform(-0.5, 0.5, n)

    def exact(norm: str) -> Array:
        assert norm == "l2"
        return 1.0 - along

    images = torch.from_numpy(along[:, None] * axis)
    model = Paraboloid(torch.from_numpy(axis), 1.0, bend)
    return Oracle(model, images, torch.zeros(n, dtype=torch.int64), (-10.0, 10.0), exact)


def relu_network(seed: int, *, side: int, hidden: tuple[int, int], n: int = 8) -> Oracle:
    """A network of two small hidden layers, trained on shrunken digits: mixed-integer programs know its margins."""
    from marginattack.sources.data import samples

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = (side * side, *hidden, 10)
        layers = [module for a, b in pairwise(sizes) for module in (nn.Linear(a, b, dtype=torch.float64), nn.ReLU())]
        model = nn.Sequential(*layers[:-1])
    x, y = samples("mnist")
    x = nn.functional.adaptive_avg_pool2d(x, side).flatten(1).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    correct = model(x).argmax(1) == y

    def exact(norm: str) -> Array:
        raise AssertionError("use milp_margins, which needs an upper bound to be fast")

    return Oracle(model, x[correct][:n], y[correct][:n], (0.0, 1.0), exact)


def milp_margins(oracle: Oracle, within: Array) -> Array:
    """The exact ℓ∞ margins of a ReLU network's inputs, sought up to ``within``; infinity where none is so near."""
    assert isinstance(oracle.model, nn.Sequential)
    last = oracle.model[-1]
    assert isinstance(last, nn.Linear)
    samples = zip(oracle.images.numpy(), oracle.labels.tolist(), within, strict=True)
    return np.array([
        min(_milp_margin(oracle.model, x, y, i, min(top * (1 + 1e-6), 1)) for i in range(last.out_features) if i != y)
        for x, y, top in samples
    ])  # fmt: skip


def _milp_margin(model: nn.Sequential, x0: Array, label: int, other: int, within: float) -> float:
    """Min ρ ≤ within  s.t.  |x − x₀| ≤ ρ, x ∈ [0, 1]ᵈ, l_label(x) ≤ l_other(x), with a 0/1 variable for each ReLU."""
    linears = [m for m in model if isinstance(m, nn.Linear)]
    weights = [m.weight.detach().numpy() for m in linears]
    biases = [m.bias.detach().numpy() for m in linears]
    d = len(x0)
    counts = [len(b) for b in biases[:-1]]
    total = 1 + d + 2 * sum(counts)  # ρ, x, then for each layer its outputs and its switches
    rows: list[Array] = []
    tops: list[float] = []

    def at_most(entries: dict[int, float], top: float) -> None:
        row = np.zeros(total)
        for column, value in entries.items():
            row[column] = value
        rows.append(row)
        tops.append(top)

    for i in range(d):
        at_most({1 + i: 1, 0: -1}, x0[i])
        at_most({1 + i: -1, 0: -1}, -x0[i])
    low, high = np.maximum(x0 - within, 0), np.minimum(x0 + within, 1)
    inputs = list(range(1, 1 + d))
    least, upper, integer = np.zeros(total), np.zeros(total), np.zeros(total)
    upper[0], least[1 : 1 + d], upper[1 : 1 + d] = within, low, high
    column = 1 + d
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        bottom = np.maximum(w, 0) @ low + np.minimum(w, 0) @ high + b
        top = np.maximum(w, 0) @ high + np.minimum(w, 0) @ low + b
        outputs, switches = range(column, column + len(b)), range(column + len(b), column + 2 * len(b))
        for j, (out, switch) in enumerate(zip(outputs, switches, strict=True)):
            terms = {c: float(v) for c, v in zip(inputs, w[j], strict=True)}
            negative = {c: -v for c, v in terms.items()}
            at_most({**terms, out: -1}, -b[j])  # out ≥ a
            # out ≤ a − bottom (1 − switch)
            at_most({**negative, out: 1, switch: -min(bottom[j], 0)}, b[j] - min(bottom[j], 0))
            at_most({out: 1, switch: -max(top[j], 0)}, 0)  # out ≤ top · switch
            upper[out], upper[switch], integer[switch] = max(top[j], 0), float(top[j] > 0), 1
            least[switch] = float(bottom[j] > 0)
        low, high = np.maximum(bottom, 0), np.maximum(top, 0)
        inputs = list(outputs)
        column += 2 * len(b)
    difference = weights[-1][label] - weights[-1][other]
    terms = {c: float(v) for c, v in zip(inputs, difference, strict=True)}
    at_most(terms, float(biases[-1][other] - biases[-1][label]))
    cost = np.zeros(total)
    cost[0] = 1
    plane = LinearConstraint(np.array(rows), ub=np.array(tops))
    box, kinds = Bounds(least, upper), integer.astype(int)
    result = milp(cost, constraints=plane, integrality=kinds, bounds=box, options={"mip_rel_gap": 1e-9})
    return float(result.fun) if result.success else np.inf
