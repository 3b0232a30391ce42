"""Independent references: linear programs, and exact margins of tiny networks by enumeration."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, linprog, minimize
from torch import Tensor, nn

Array = NDArray[np.float64]
Layers = list[tuple[Array, Array]]


def solve(*program: Any, bounds: Any) -> float:
    """The value of a linear program; infinite where it has no solution."""
    program_solver: Any = linprog
    found = program_solver(*program, bounds=bounds)
    return float(found.fun) if found.success else float("inf")


def layers(model: nn.Module) -> Layers:
    """Weights and biases of the fully connected layers."""
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [(each.weight.detach().double().numpy(), each.bias.detach().double().numpy()) for each in found]


@dataclass(frozen=True, eq=False)
class Ball:
    """The part of the unit cube within a radius of its centre, in l1 or linf."""

    centre: Array
    radius: float
    norm: str

    def constraints(self, variables: int) -> tuple[list[Array], list[float]]:
        """Rows and right sides, at most: in l1 one row per choice of signs, over all variables of a program."""
        d = len(self.centre)
        signs = [np.array(each) for each in product((1.0, -1.0), repeat=d)] if self.norm == "l1" else []
        rows = [np.r_[each, np.zeros(variables - d)] for each in signs]
        return rows, [self.radius + float(each @ self.centre) for each in signs]


def relaxed_minimum(parts: Layers, row: Array, lines: list[tuple[Array, ...]], ball: Ball) -> float:
    """Minimum of row · z over x in a ball, z the output of the last layer, each ReLU between a lower and an upper line.

    A linear program in all variables: x, then for each layer its pre-activation and, but for the last, its activation.
    """
    lo, hi = (np.clip(ball.centre + side * ball.radius, 0, 1) for side in (-1, 1))
    sizes = [len(lo)]
    for weight, _ in parts:
        sizes += [len(weight)] * 2
    sizes = sizes[:-1]
    starts = np.cumsum([0, *sizes])
    equal, right = [], []
    upper, upper_right = ball.constraints(starts[-1])
    for k, (weight, bias) in enumerate(parts):
        before, after = starts[2 * k], starts[2 * k + 1]
        for i in range(len(weight)):
            line = np.zeros(starts[-1])
            line[after + i], line[before : before + weight.shape[1]] = 1, -weight[i]
            equal.append(line)
            right.append(bias[i])
        if k < len(parts) - 1:
            low_slope, slope, offset = lines[k]
            for i in range(len(weight)):
                line = np.zeros(starts[-1])
                line[starts[2 * k + 2] + i], line[after + i] = 1, -slope[i]
                upper.append(line)
                upper_right.append(offset[i])
                line = np.zeros(starts[-1])
                line[starts[2 * k + 2] + i], line[after + i] = -1, low_slope[i]
                upper.append(line)
                upper_right.append(0.0)
    cost = np.zeros(starts[-1])
    cost[starts[2 * len(parts) - 1] :][: len(row)] = row
    bounds = [*zip(lo, hi, strict=True), *[(None, None)] * (starts[-1] - len(lo))]
    return solve(cost, upper or None, upper_right or None, equal, right, bounds=bounds)


def crown(parts: Layers, rows: Array, ball: Ball) -> Array:
    """Bounds of rows · logits with the relaxation of CROWN, each by a linear program of its own."""
    lines: list[tuple[Array, ...]] = []
    for k in range(1, len(parts)):
        unit = np.eye(len(parts[k - 1][0]))
        low = np.array([relaxed_minimum(parts[:k], each, lines, ball) for each in unit])
        high = -np.array([relaxed_minimum(parts[:k], -each, lines, ball) for each in unit])
        open_ = (low < 0) & (high > 0)
        slope = np.where(open_, high / np.where(open_, high - low, 1), low >= 0)
        lines.append((np.where(open_, high > -low, low >= 0) * 1.0, slope, np.where(open_, -slope * low, 0)))
    return np.array([relaxed_minimum(parts, each, lines, ball) for each in rows])


def exact_margins(model: nn.Module, x: Tensor, label: int, norm: str) -> Array:
    """The distance to the nearest point of [0, 1]^d where each other class leads, over all patterns of signs."""
    slope = next((each.negative_slope for each in model.modules() if isinstance(each, nn.LeakyReLU)), 0.0)
    parts = layers(model)
    centre = x.double().numpy().ravel()
    hidden = [len(weight) for weight, _ in parts[:-1]]
    best = np.full(len(parts[-1][0]), np.inf)
    for pattern in product((0.0, 1.0), repeat=sum(hidden)):
        weight, bias, signs, offsets = np.eye(len(centre)), np.zeros(len(centre)), [], []
        left = list(pattern)
        for (w, b), size in zip(parts[:-1], hidden, strict=True):
            active, left = np.array(left[:size]), left[size:]
            weight, bias = w @ weight, w @ bias + b
            signs.append((1 - 2 * active)[:, None] * weight)  # active: h ≥ 0
            offsets.append((2 * active - 1) * bias)
            gain = np.where(active > 0, 1.0, slope)
            weight, bias = gain[:, None] * weight, gain * bias
        w, b = parts[-1][0] @ weight, parts[-1][1] + parts[-1][0] @ bias
        for other in range(len(w)):
            if other != label:
                a = np.vstack([*signs, (w[label] - w[other])[None]])
                c = np.concatenate([*offsets, [b[other] - b[label]]])
                best[other] = min(best[other], _nearest(a, c, centre, norm))
    return best


def exact_margin(model: nn.Module, x: Tensor, label: int, norm: str) -> float:
    """The distance to the nearest point of [0, 1]^d of another class."""
    return float(exact_margins(model, x, label, norm).min())


def _nearest(a: Array, c: Array, centre: Array, norm: str) -> float:
    """The least ‖x − centre‖ subject to a x ≤ c and 0 ≤ x ≤ 1; infinite where there is no such x."""
    d, box = len(centre), [(0.0, 1.0)] * len(centre)
    if norm == "l2":
        inside: Any = linprog(np.zeros(d), a, c, bounds=box)
        if not inside.success:
            return float("inf")
        quadratic: Any = minimize
        found = quadratic(
            lambda x: ((x - centre) ** 2).sum(), inside.x, jac=lambda x: 2 * (x - centre), bounds=box,
            constraints=[LinearConstraint(a, -np.inf, c)], method="SLSQP", options={"ftol": 1e-14, "maxiter": 200},
        )  # fmt: skip
        return float(np.linalg.norm(found.x - centre)) if found.success else float("inf")
    count = d if norm == "l1" else 1
    reach = np.eye(d) if norm == "l1" else np.ones((d, 1))
    rows = np.block([[a, np.zeros((len(a), count))], [np.eye(d), -reach], [-np.eye(d), -reach]])
    cost, right = np.r_[np.zeros(d), np.ones(count)], np.r_[c, centre, -centre]
    return solve(cost, rows, right, bounds=[*box, *[(0, None)] * count])
