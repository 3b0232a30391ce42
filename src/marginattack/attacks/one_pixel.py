r"""One pixel (Su, Vargas, Sakurai 2019): differential evolution of the places and values of k pixels.

.. math:: \min_{e} \; p_y(x_0 + e) \quad \text{s.t. at most } k \text{ pixels of } e \text{ differ from } 0,
    \; x_0 + e \in [lo, hi]^d

(targeted at class a: max p_a). It needs forwards only.
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
    """Search k pixels and their values with scipy's differential evolution, one sample at a time; needs finite bounds.

    A candidate holds, per pixel, its place and its values as shares of the box. The first axis of an input with three
    or more axes is the channel, and a pixel has a value per channel; in other inputs it has one. ℓ0 counts coordinates:
    up to k·c for k pixels of c channels.

    Deviations: log p_y/(1 − p_y) instead of p_y, which gives the same search, since evolution only compares, without
    ties where p_y rounds to 1; the first population is a Latin hypercube instead of Gaussian colours; mutants start
    from the best candidate with a random weight (default of scipy and ART) instead of a random one with weight 0.5;
    values are not rounded to 8 bits; any adversarial candidate ends the search, not only the best.

    Args:
        pixels: k
        population: Candidates per generation, rounded down to a multiple of the variables as in ART 1.20.
        generations: The maximum number of generations after the first population.
        strategy: As in ``scipy.optimize.differential_evolution``.
        mutation: As in ``scipy.optimize.differential_evolution``.
        of: The loss that is minimised, one of ``marginattack.core.losses``.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.OnePixel(population=40)
        >>> ma.measure(torch.nn.Identity(), x, [0], "l0", attack=attack).distance.tolist()
        [1.0]
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "population forwards per generation"
    reference: ClassVar = "Su, Vargas, Sakurai 2019"
    needs_gradient: ClassVar = False

    pixels: int = 1
    population: int = 400
    generations: int = 100
    strategy: Literal["best1bin", "rand1bin"] = "best1bin"
    mutation: float | tuple[float, float] = (0.5, 1.0)
    of: Loss = LOG_ODDS

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("OnePixel, which draws values between the bounds,")
        problem.for_each_sample(self.attack_sample)

    def attack_sample(self, problem: Problem) -> None:
        """Evolve candidates for a problem of one sample, until one is adversarial or the budget is spent."""
        from scipy.optimize import Bounds, differential_evolution  # here, so that other attacks start without scipy

        variables = self.pixels * sum(_pixel_numbers(problem))
        seed = (problem.draws.uniform()[0, :4] * 2**24).long().tolist()

        def energies(candidates: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
            with problem.subproblem(torch.zeros(candidates.shape[1], dtype=torch.int64)) as copies:
                loss = copies.value(self.points(copies, problem.x0.new_tensor(candidates.T)), loss=self.of)
            problem.budget.deactivate(torch.isfinite(problem.incumbent.distance[:, 0]))
            return loss[:, 0].tolist()

        differential_evolution(
            energies, Bounds([0.0] * variables, [1.0] * variables), vectorized=True, updating="deferred", polish=False,
            tol=0, strategy=self.strategy, mutation=self.mutation, recombination=1.0, maxiter=self.generations,
            popsize=max(1, self.population // variables), seed=np.random.default_rng(seed),
        )  # fmt: skip

    def points(self, problem: Problem, candidates: Tensor) -> Points:
        """x₀ with each candidate's pixels put in; of two pixels in one place the later counts."""
        axes, channels = _pixel_numbers(problem)
        grid = problem.shape[-axes:]
        lo, hi = (bound.expand_as(problem.x0) for bound in (problem.box.lo, problem.box.hi))
        x = problem.x0
        for pixel in candidates.unflatten(1, (self.pixels, axes + channels)).unbind(1):
            index = torch.zeros_like(pixel[:, :1], dtype=torch.int64)
            for axis, extent in enumerate(grid):
                index = index * extent + (pixel[:, axis, None] * extent).long().clamp(max=extent - 1)
            index = index + prod(grid) * torch.arange(channels, device=index.device)
            value = torch.lerp(lo.gather(1, index), hi.gather(1, index), pixel[:, axes:])
            x = x.scatter(1, index, value)
        return problem.box.clamp(x)


def _pixel_numbers(problem: Problem) -> tuple[int, int]:
    """How many numbers give the place of a pixel, and how many its values."""
    axes = len(problem.shape)
    return (axes - 1, problem.shape[0]) if axes > 2 else (axes, 1)
