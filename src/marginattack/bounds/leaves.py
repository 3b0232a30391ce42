r"""The nearest point of a polytope, on which the network is linear since every sign is fixed.

.. math:: \min_x \|x - x_0\| \quad \text{s.t.} \quad A x \le b, \; lo \le x \le hi

A linear program in ℓ1 and ℓ∞. In ℓ2 the dual is maximised: for multipliers μ ≥ 0 the best x is x₀ − Aᵀμ, clipped to the
box. The answers are candidates for nearer adversarial points, not bounds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize

Array = NDArray[np.float64]


def nearest_point(a: Array, b: Array, centre: Array, lo: Array, hi: Array, norm: str) -> Array | None:
    """The nearest point to ``centre``; None if there is none."""
    return _project(a, b, centre, lo, hi) if norm == "l2" else _program(a, b, centre, lo, hi, norm)


def _program(a: Array, b: Array, centre: Array, lo: Array, hi: Array, norm: str) -> Array | None:
    """Variables are the steps up and down from the centre and, in ℓ∞, their largest sum."""
    d, sides = (
        len(centre),
        [*zip(np.zeros_like(hi), hi - centre, strict=True), *zip(np.zeros_like(lo), centre - lo, strict=True)],
    )
    rows, right = np.hstack([a, -a]), b - a @ centre
    cost = np.ones(2 * d)
    if norm == "linf":
        rows, cost = np.hstack([rows, np.zeros((len(a), 1))]), np.r_[np.zeros(2 * d), 1.0]
        sides.append((0.0, None))
        reach = np.hstack([np.eye(d), np.eye(d), -np.ones((d, 1))])
        rows, right = np.vstack([rows, reach]), np.r_[right, np.zeros(d)]
    solve: Any = linprog
    found = solve(cost, rows, right, bounds=sides, method="highs")
    return centre + found.x[:d] - found.x[d : 2 * d] if found.success else None


def _project(a: Array, b: Array, centre: Array, lo: Array, hi: Array) -> Array | None:
    scale = np.linalg.norm(a, axis=1).clip(min=1e-30)
    a, right = a / scale[:, None], (b - a @ centre) / scale

    def step(multipliers: Array) -> Array:
        return np.clip(-multipliers @ a, lo - centre, hi - centre)

    def dual(multipliers: Array) -> tuple[float, Array]:
        delta = step(multipliers)
        slack = a @ delta - right
        return -float(delta @ delta / 2 + multipliers @ slack), -slack

    search: Any = minimize
    found = search(
        dual, np.zeros(len(a)), jac=True, bounds=[(0, None)] * len(a), method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-9},
    )  # fmt: skip
    delta = step(found.x)
    return centre + delta if float((a @ delta - right).max()) < 1e-4 * max(1.0, float(np.abs(right).max())) else None
