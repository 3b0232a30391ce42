r"""Distributionally adversarial attack (Zheng, Chen, Ren 2018): particles that descend together and keep apart.

.. math:: \min_\mu \; E_\mu L - c \, H(\mu) \quad \text{over distributions } \mu \text{ on } ball \cap box

The entropy H of the particles is seen through a Gaussian kernel :math:`K_{ij} = \exp(-\|x_i - x_j\|^2 / 2 h^2)`.
"""

from dataclasses import dataclass
from math import log
from typing import ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.attacks.pgd import anywhere, stepped
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars


@runtime_checkable
class Flow(Protocol):
    """(x, ĝ), both (samples, particles, d) ↦ what each particle descends; ĝ is ∇L scaled to a mean size of one"""

    def __call__(self, x: Tensor, g: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True)
class Blob:
    """ĝ_i + c/m (Σ_j K_ij ĝ_j − p_i), p_i ∝ Σ_j K_ij (x_i − x_j), h² = median ‖x_i − x_j‖² / (2 log(m + 1)).

    The authors' code gives p the opposite sign, which draws the particles together; ``repulsion`` = −1 is that.
    """

    c: float = 1.1
    repulsion: float = 1.0

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        m = x.shape[1]
        near = _nearness(x, 2 * log(m + 1))
        K = torch.exp(-near)
        return g + self.c / m * (K @ g - self.repulsion * _push(K, x))


@final
@dataclass(frozen=True)
class DGF:
    """ĝ_i − c p_i, p_i ∝ Σ_j (1 − ‖x_i − x_j‖² / 2h²) K_ij (x_i − x_j): particles nearer than √2 h push each other.

    Deviation: h² is the median of ‖x_i − x_j‖², because with the authors' (that of ``Blob``) the copies of one sample,
    all about equally far from each other, would pull.
    """

    c: float = 0.1

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        near = _nearness(x, 1.0)
        return g - self.c * _push((1 - near) * torch.exp(-near), x)


@final
@dataclass(frozen=True, kw_only=True)
class DAA(Attack):
    """``particles`` copies of each sample, from random starts within ``eps``, descend ``flow``.

    ``step`` is a share of eps; with ``stop`` a sample ends with the first adversarial point of any copy.

    Deviations: the particles are copies of one sample. The authors let the samples of a batch act on each other, so
    that a result there depends on which inputs happen to be measured together; here it may not. And slopes and pushes
    are scaled to the same size before c weighs them. Unscaled, c fits one network: where the cross-entropy is flat,
    as on a network that was not trained against attacks, the push drowns the slope (60 digits, ε = 0.1: 28 % success
    at most with the authors' updates and constants, 45 % without any push).
    """

    norms: ClassVar = ("linf",)
    cost: ClassVar = "1 forward + 1 backward a step and particle"
    reference: ClassVar = "Zheng, Chen, Ren 2018"

    eps: float = 0.3
    steps: int = 40
    step: float = 1 / 30
    particles: int = 10
    flow: Flow = Blob()
    loss: Loss = CROSS_ENTROPY
    stop: bool = True

    def __call__(self, problem: Problem) -> None:
        self.within(problem, torch.full_like(problem.incumbent.distance, self.eps))

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        """Attack each sample within its own radius, one of the particles from ``start`` where that is given."""
        n, m = len(radius), self.particles
        rows = torch.arange(n).repeat_interleave(m)
        radius = radius.repeat_interleave(m, dim=0)
        with problem.subproblem(rows) as many:
            x = anywhere(many, radius)
            if start is not None:
                x = x.index_copy(0, torch.arange(0, n * m, m, device=x.device), start)
            for _ in range(self.steps):
                _, g = many.value_and_gradient(x, loss=self.loss)
                if self.stop:
                    found = _grouped(many.incumbent.distance <= radius, m).any(1)
                    many.budget.deactivate(found[:, 0].repeat_interleave(m))
                v = self.flow(_grouped(x, m), _scaled(_grouped(g, m))).flatten(0, 1)
                x = stepped(many, x, v, self.step * radius, radius)
            many.value(x)


def _grouped(rows: Tensor, m: int) -> Tensor:
    """The m copies of each sample along an axis of their own."""
    return rows.reshape(-1, m, rows.shape[1])


def _nearness(x: Tensor, share: float) -> Tensor:
    """‖x_i − x_j‖² / 2h² within each sample, h² the median of the distances squared over ``share``."""
    apart = torch.cdist(x, x).square()
    median = apart.flatten(1).median(1).values[:, None, None]
    return apart / (2 * median / share).clamp(min=torch.finfo(x.dtype).tiny)


def _push(weight: Tensor, x: Tensor) -> Tensor:
    """Σ_j w_ij (x_i − x_j), scaled"""
    return _scaled(weight.sum(2, keepdim=True) * x - weight @ x)


def _scaled(v: Tensor) -> Tensor:
    """Each particle's v over the mean size of its entries."""
    return v / v.abs().mean(2, keepdim=True).clamp(min=torch.finfo(v.dtype).tiny)
