r"""Distributionally adversarial attack (Zheng, Chen, Ren 2018): particles that descend together and repel each other.

.. math:: \min_\mu \; E_\mu L - c \, H(\mu) \quad \text{over distributions } \mu \text{ on } ball \cap box

The entropy H of the particles is estimated with a Gaussian kernel :math:`K_{ij} = \exp(-\|x_i - x_j\|^2 / 2 h^2)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import ClassVar, TypeAlias, final

import torch
from torch import Tensor

from marginattack.attacks.pgd import FixedRadiusAttack, random_point, steepest_step
from marginattack.core.losses import CROSS_ENTROPY, Loss
from marginattack.core.problem import Problem
from marginattack.core.types import Points, Scalars

# (x, ĝ), both (samples, particles, d) ↦ the direction of each particle; ĝ is ∇L over its mean size
Flow: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Blob:
    """ĝ_i + c/m (Σ_j K_ij ĝ_j − p_i), p_i ∝ Σ_j K_ij (x_i − x_j), h² = median ‖x_i − x_j‖² / (2 log(m + 1)).

    The authors' code gives p the opposite sign, which attracts the particles; ``repulsion=-1`` reproduces it.
    """

    c: float = 1.1
    repulsion: float = 1.0

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        m = x.shape[1]
        K = torch.exp(-_scaled_distance(x, 2 * log(m + 1)))
        return g + self.c / m * (K @ g - self.repulsion * _repulsion(K, x))


@dataclass(frozen=True)
class DGF:
    """ĝ_i − c p_i, p_i ∝ Σ_j (1 − ‖x_i − x_j‖² / 2h²) K_ij (x_i − x_j): particles nearer than √2 h repel each other.

    Deviation: h² is the median of ‖x_i − x_j‖². With the authors' (that of ``Blob``) the copies of one sample, all
    about equally far from each other, would attract each other.
    """

    c: float = 0.1

    def __call__(self, x: Tensor, g: Tensor) -> Tensor:
        distance = _scaled_distance(x, 1.0)
        return g - self.c * _repulsion((1 - distance) * torch.exp(-distance), x)


@final
@dataclass(frozen=True, kw_only=True)
class DAA(FixedRadiusAttack):
    """Copies of each sample descend from random starts within a fixed radius and repel each other.

    Deviations: the particles are copies of one sample; the authors let the samples of a batch interact, so that results
    depend on the batch. Gradients and repulsion are scaled to the same size before c weighs them. Unscaled, c fits one
    network: where the cross-entropy is flat, as without adversarial training, repulsion dominates (60 digits, ε = 0.1:
    at most 28 % success with the authors' updates and constants, 45 % without repulsion).

    Args:
        eps: Radius of the ball around x₀.
        steps: Number of steps.
        loss: As in ``PGD``.
        step: Length of a step as a share of ``eps``.
        particles: Copies of each sample.
        flow: How particles interact, ``Blob()`` or ``DGF()``.
        stop: Whether a sample ends at the first adversarial point of any copy.

    Example:
        >>> import torch, marginattack as ma
        >>> x, attack = torch.tensor([[0.9, 0.2, 0.1]]), ma.attacks.DAA(eps=0.4, particles=3)
        >>> ma.measure(torch.nn.Identity(), x, [0], "linf", attack=attack).success.tolist()
        [True]
    """

    norms: ClassVar = ("linf",)
    cost: ClassVar = "1 forward + 1 backward per step and particle"
    reference: ClassVar = "Zheng, Chen, Ren 2018"

    eps: float | None = None
    steps: int = 40
    step: float = 1 / 30
    particles: int = 10
    flow: Flow = Blob()
    loss: Loss = CROSS_ENTROPY
    stop: bool = True

    def within(self, problem: Problem, radius: Scalars, start: Points | None = None) -> None:
        n, m = len(radius), self.particles
        radius = radius.repeat_interleave(m, dim=0)
        with problem.subproblem(torch.arange(n).repeat_interleave(m)) as copies:
            x = random_point(copies, radius)
            if start is not None:
                x = x.index_copy(0, torch.arange(0, n * m, m, device=x.device), start)
            for _ in range(self.steps):
                _, g = copies.value_and_gradient(x, loss=self.loss)
                if self.stop:
                    found = (copies.incumbent.distance <= radius).reshape(n, m).any(1)
                    copies.budget.deactivate(found.repeat_interleave(m))
                v = self.flow(x.reshape(n, m, -1), _over_mean_size(g.reshape(n, m, -1))).flatten(0, 1)
                x = steepest_step(copies, x, v, self.step * radius, radius)
            copies.value(x)


def _scaled_distance(x: Tensor, share: float) -> Tensor:
    """‖x_i − x_j‖² / 2h² within each sample, h² the median of ‖x_i − x_j‖² over ``share``."""
    squares = torch.cdist(x, x).square()
    median = squares.flatten(1).median(1).values[:, None, None]
    return squares / (2 * median / share).clamp(min=torch.finfo(x.dtype).tiny)


def _repulsion(weight: Tensor, x: Tensor) -> Tensor:
    """Σ_j w_ij (x_i − x_j), over its mean size"""
    return _over_mean_size(weight.sum(2, keepdim=True) * x - weight @ x)


def _over_mean_size(v: Tensor) -> Tensor:
    """Each particle's v over the mean absolute value of its entries."""
    return v / v.abs().mean(2, keepdim=True).clamp(min=torch.finfo(v.dtype).tiny)
