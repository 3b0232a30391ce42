r"""One pixel (Su, Vargas, Sakurai 2019): differential evolution over where k pixels are and what they become.

.. math:: \min_{e} \; p_y(x_0 + e) \quad \text{s.t. at most } k \text{ pixels of } e \text{ differ from } 0,
    \; x_0 + e \in [lo, hi]^d

(towards a class a: max p_a). It needs no gradient, only forwards.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.losses import LOG_ODDS, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points


@final
@dataclass(frozen=True, kw_only=True)
class OnePixel(Attack):
    """Search k pixels and their values with scipy's differential evolution, one sample at a time, until one is found.

    Of an input of three or more axes the first is the channels and a pixel is a place in the others; any other input
    has one value a place. ℓ0 counts coordinates, so k pixels of c channels are up to k·c. A candidate holds, for each
    pixel, its place and its values as shares of the box. ``population`` is the number of candidates, rounded down to
    a multiple of the variables as in ART 1.20, each of which costs one forward a generation.

    Deviations: log p_y/(1 − p_y) instead of p_y (evolution only compares, so the search is the same, without ties
    where p_y rounds to 1); the first population is a Latin hypercube instead of Gaussian colours; mutants start from
    the best candidate with a random weight, scipy's default and ART's, instead of a random one with weight 0.5;
    values are not rounded to 8 bits; any adversarial candidate ends the search, not only the best one.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "population forwards a generation"
    reference: ClassVar = "Su, Vargas, Sakurai 2019"

    pixels: int = 1
    population: int = 400
    generations: int = 100
    strategy: Literal["best1bin", "rand1bin"] = "best1bin"
    mutation: float | tuple[float, float] = (0.5, 1.0)
    of: Loss = LOG_ODDS

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("OnePixel, which draws pixels between the walls,")
        problem.for_each_sample(self.search)

    def search(self, one: Problem) -> None:
        """Evolve candidates for one sample; Problem ends it when they are out of budget or one is adversarial."""
        from scipy.optimize import Bounds, differential_evolution  # here, so that the other attacks start without scipy

        variables = self.pixels * sum(_pixel(one))

        def belief(candidates: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
            with one.subproblem(torch.zeros(candidates.shape[1], dtype=torch.int64)) as copies:
                value = copies.value(self.points(copies, one.x0.new_tensor(candidates.T)), loss=self.of)
            one.budget.deactivate(torch.isfinite(one.incumbent.distance[:, 0]))
            energies: list[float] = value[:, 0].tolist()
            return energies

        differential_evolution(
            belief,  # type: ignore[arg-type]  # the stubs know no vectorised objective
            Bounds([0.0] * variables, [1.0] * variables), vectorized=True, updating="deferred", polish=False, tol=0,
            strategy=self.strategy, mutation=self.mutation, recombination=1.0, maxiter=self.generations,
            popsize=max(1, self.population // variables), seed=_generator(one),
        )  # fmt: skip

    def points(self, problem: Problem, candidates: Tensor) -> Points:
        """x₀ with each candidate's pixels put in, one after the other where they meet."""
        axes, channels = _pixel(problem)
        grid = problem.shape[-axes:]
        lo, hi = (bound.expand_as(problem.x0) for bound in (problem.box.lo, problem.box.hi))
        x = problem.x0
        for pixel in candidates.unflatten(1, (self.pixels, axes + channels)).unbind(1):
            place = torch.zeros_like(pixel[:, :1], dtype=torch.int64)
            for axis, extent in enumerate(grid):
                place = place * extent + (pixel[:, axis, None] * extent).long().clamp(max=extent - 1)
            place = place + prod(grid) * torch.arange(channels, device=place.device)
            value = torch.lerp(lo.gather(1, place), hi.gather(1, place), pixel[:, axes:])
            x = x.scatter(1, place, value)
        return problem.box.clamp(x)


def _pixel(problem: Problem) -> tuple[int, int]:
    """How many numbers say where a pixel is, and how many what it is."""
    axes = len(problem.shape)
    return (axes - 1, problem.shape[0]) if axes > 2 else (axes, 1)


def _generator(problem: Problem) -> np.random.Generator:
    """Random numbers of this sample's own."""
    return np.random.default_rng((problem.draws.uniform()[0, :4] * 2**24).long().tolist())
