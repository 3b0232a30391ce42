"""Boundary attack (Brendel, Rauber, Bethge 2018), from decisions alone: an adapter to Foolbox 3.3.4.

From a noise image it moves along the boundary: a random step on the sphere around x₀, then one towards x₀, kept if the
point is still adversarial. Both step sizes adapt. Foolbox sees a model of two classes that queries the problem. Samples
run one at a time, because Foolbox shares random draws within a batch. The draws are torch's on the problem's device,
seeded from the sample's own, so CPU and GPU results differ. Proposals are clamped to the bounds of each coordinate.
"""

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core.problem import Problem
from marginattack.core.sharing import seeded
from marginattack.errors import InputError


@final
@dataclass(frozen=True, kw_only=True)
class Boundary(Attack):
    """A random walk along the decision boundary, from a noise image towards x₀; needs Foolbox and finite bounds.

    Args:
        steps: Proposals, each of a sideways step and a step towards x₀.
        directions: The maximum number of noise images tried as a start.
        spherical_step: Initial size of the sideways step, relative to the distance.
        source_step: Initial size of the step towards x₀, relative to the distance.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.6, 0.4, 0.1]]), ma.attacks.Boundary(steps=100)
        >>> ma.measure(torch.nn.Identity(), x, [0], "l2", attack=attack).success.tolist()
        [True]
    """

    norms: ClassVar = ("l2",)
    cost: ClassVar = "1 forward per step, 2 every tenth step"
    reference: ClassVar = "Brendel, Rauber, Bethge 2018"
    needs_gradient: ClassVar = False

    steps: int = 5000
    directions: int = 1000
    spherical_step: float = 0.01
    source_step: float = 0.01

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("Boundary, which starts from noise in the box,")
        foolbox = _import_foolbox()
        problem.for_each_sample(lambda one: self.attack_sample(one, foolbox))

    def attack_sample(self, problem: Problem, foolbox: Any) -> None:
        """Run Foolbox's attack on a problem of one sample."""
        seed = int(problem.draws.uniform()[0, 0] * 2**24)
        model, label = _Decisions(problem, foolbox), torch.zeros_like(problem.x0[:, 0], dtype=torch.int64)
        noise = foolbox.attacks.LinearSearchBlendedUniformNoiseAttack(steps=50, directions=self.directions)
        walk = foolbox.attacks.BoundaryAttack(
            steps=self.steps, spherical_step=self.spherical_step, source_step=self.source_step
        )
        with seeded(seed, problem.x0.device):  # and without warnings, such as that no noise is adversarial
            noise.run(model, problem.x0, label)
            if bool(torch.isfinite(problem.incumbent.distance)):
                try:
                    walk.run(model, problem.x0, label, starting_points=problem.incumbent.points)
                except ValueError as error:  # a randomised model may decide differently when queried again
                    if "starting_points" not in str(error):
                        raise


class _Decisions:
    """A problem as a Foolbox model with two logits; the second is higher if a point is adversarial."""

    def __init__(self, problem: Problem, foolbox: Any) -> None:
        self.problem = problem
        self.bounds = foolbox.types.Bounds(float(problem.box.lo.min()), float(problem.box.hi.max()))

    def __call__(self, points: Any) -> Any:
        c = self.problem.value(self.problem.box.clamp(points.raw))
        return type(points)(torch.cat([(c >= 0).to(c), (c < 0).to(c)], dim=1))


def _import_foolbox() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names that scipy has moved
            return import_module("foolbox")
    except ImportError:
        raise InputError('Boundary needs Foolbox 3.3.4: pip install "marginattack[peers]"') from None
