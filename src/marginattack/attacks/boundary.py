"""Boundary attack (Brendel, Rauber, Bethge 2018), from decisions alone: an adapter to Foolbox 3.3.4's.

It walks along the boundary from an adversarial noise image: a random step on the sphere around x₀, a step towards x₀,
kept if it is still adversarial. Both step sizes adapt.

Foolbox sees a model of two classes that asks the Problem: its label 0 is predicted where c(x) ≥ 0. Samples run one at
a time, so that their draws are theirs: in a batch Foolbox shares one draw between all. That costs time, one forward of
one input a step. The draws are torch's on the problem's device, seeded from the sample's own and put back afterwards:
a CPU and a GPU walk differently. Bounds a coordinate are kept by clamping what Foolbox proposes.
"""

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, final

import torch

from marginattack.attacks.attack import Attack
from marginattack.core.problem import Problem
from marginattack.errors import InputError


@final
@dataclass(frozen=True, kw_only=True)
class Boundary(Attack):
    """At most ``directions`` noise images to start from, then ``steps`` proposals, each towards x₀ and sideways."""

    norms: ClassVar = ("l2",)
    cost: ClassVar = "1 forward, and 1 more every tenth step"
    reference: ClassVar = "Brendel, Rauber, Bethge 2018"

    steps: int = 5000
    directions: int = 1000
    spherical_step: float = 0.01
    source_step: float = 0.01

    def __call__(self, problem: Problem) -> None:
        problem.box.require_finite("Boundary, which starts from noise in the box,")
        foolbox = _foolbox()
        problem.for_each_sample(lambda one: self.walk(one, foolbox))

    def walk(self, problem: Problem, foolbox: Any) -> None:
        """Foolbox's attack on one sample."""
        seed = int(problem.draws.uniform()[0, 0] * 2**24)
        model, label = _Decisions(problem, foolbox), torch.zeros_like(problem.x0[:, 0], dtype=torch.int64)
        noise = foolbox.attacks.LinearSearchBlendedUniformNoiseAttack(steps=50, directions=self.directions)
        walk = foolbox.attacks.BoundaryAttack(
            steps=self.steps, spherical_step=self.spherical_step, source_step=self.source_step
        )
        with torch.random.fork_rng([problem.x0.device] if problem.x0.is_cuda else []), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no noise is adversarial: here it is a result
            torch.manual_seed(seed)
            noise.run(model, problem.x0, label)
            if bool(torch.isfinite(problem.incumbent.distance)):
                walk.run(model, problem.x0, label, starting_points=problem.incumbent.points)


class _Decisions:
    """A problem as Foolbox's model: two logits, the first higher where the constraint is not met."""

    def __init__(self, problem: Problem, foolbox: Any) -> None:
        self.problem = problem
        self.bounds = foolbox.types.Bounds(float(problem.box.lo.min()), float(problem.box.hi.max()))

    def __call__(self, points: Any) -> Any:
        c = self.problem.value(self.problem.box.clamp(points.raw))
        return type(points)(torch.cat([(c >= 0).to(c), (c < 0).to(c)], dim=1))


def _foolbox() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports names that scipy has moved
            return import_module("foolbox")
    except ImportError:
        raise InputError('Boundary runs Foolbox 3.3.4, which is missing: pip install "marginattack[peers]"') from None
