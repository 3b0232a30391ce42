r"""Distributionally adversarial attack (Zheng, Chen, Ren 2018): particles that descend together and keep apart.

.. math:: \min_\mu \; E_\mu L - c \, H(\mu) \quad \text{over distributions } \mu \text{ on } ball \cap box

The entropy H of the particles is seen through a Gaussian kernel :math:`K_{ij} = \exp(-\|x_i - x_j\|^2 / 2 h^2)`.
"""

from dataclasses import dataclass
from math import log
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.attacks.pgd import anywhere, inside
from marginattack.losses import Belief, CrossEntropy
from marginattack.problem import Problem
from marginattack.shapes import Points, Scalars


class Flow(Protocol):
    """(x, ∇L), both (samples, particles, d) ↦ what each particle descends"""

    def __call__(self, x: Tensor, g: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True)
class Blob:
    """∇L_i + c/m Σ_j (K_ij ∇L_j − K_ij (x_i − x_j) / h²), h² = median ‖x_i − x_j‖² / (2 log(m + 1)).

    The authors' code gives the last term the opposite sign, which draws the particles together; ``repulsion`` = −1
    is that.
    """

    c: float = 1.1
    repulsion: float = 1.0

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        m = x.shape[1]
        apart, h2 = _distances(x, 2 * log(m + 1))
        K = torch.exp(-apart / (2 * h2))
        return g + self.c / m * (K @ g - self.repulsion * _pushed(K / h2, x))


@final
@dataclass(frozen=True)
class DGF:
    """∇L_i − c Σ_j (1 − ‖x_i − x_j‖² / 2h²) K_ij (x_i − x_j) / h²: particles nearer than √2 h push each other away.

    Deviations: h² is the median of ‖x_i − x_j‖², because with the authors' (that of ``Blob``) the copies of one
    sample, all about equally far from each other, would pull; and the 1 / h² makes c free of the pixels' scale (the
    authors' 0.001 is about 0.01 in these units).
    """

    c: float = 0.01

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        apart, h2 = _distances(x, 1)
        near = apart / (2 * h2)
        return g - self.c * _pushed((1 - near) * torch.exp(-near) / h2, x)


@final
@dataclass(frozen=True, kw_only=True)
class DAA(Attack):
    """``particles`` copies of each sample, from random starts within ``eps``, take signed steps along ``flow``.

    ``step`` is a share of eps; with ``stop`` a sample ends with the first adversarial point of any copy.

    Deviation: the particles are copies of one sample. The authors let the samples of a batch act on each other, so
    that a result there depends on which inputs happen to be measured together; here it may not.
    """

    norms: ClassVar = ("linf",)
    cost: ClassVar = "1 forward + 1 backward a step and particle"
    reference: ClassVar = "Zheng, Chen, Ren 2018"

    eps: float = 0.3
    steps: int = 40
    step: float = 1 / 30
    particles: int = 10
    flow: Flow = Blob()
    loss: Belief = CrossEntropy()
    stop: bool = True

    def __call__(self, problem: Problem) -> None:
        self.within(problem, torch.full_like(problem.distance, self.eps))

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        """Attack each sample within its own radius, one of the particles from ``start`` where that is given."""
        n, m = len(radius), self.particles
        rows = torch.arange(n).repeat_interleave(m)
        radius = radius.repeat_interleave(m, dim=0)
        with problem.take(rows) as many:
            x = anywhere(many, radius)
            if start is not None:
                x = x.index_copy(0, torch.arange(0, n * m, m, device=x.device), start)
            for _ in range(self.steps):
                _, g = many.c(x, of=self.loss)
                if self.stop:
                    found = (many.distance <= radius).unflatten(0, (n, m)).any(1)
                    many.drop(found[:, 0].repeat_interleave(m))
                v = self.flow(x.unflatten(0, (n, m)), g.unflatten(0, (n, m))).flatten(0, 1)
                x = inside(many, x - self.step * radius * many.norm.steepest(v), radius)
            many.value(x)


def _distances(x: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """‖x_i − x_j‖² within each sample, and h²: their median over ``share``."""
    apart = torch.cdist(x, x).square()
    median = apart.flatten(1).median(1).values[:, None, None]
    return apart, (median / share).clamp(min=torch.finfo(x.dtype).tiny)


def _pushed(weight: Tensor, x: Tensor) -> Tensor:
    """Σ_j w_ij (x_i − x_j)"""
    return weight.sum(2, keepdim=True) * x - weight @ x
