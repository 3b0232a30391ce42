"""FGSM, BIM, PGD, Search, LogitDifferenceAttack and DAA: known margins, and what each may not do."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import oracles
import pytest
import torch
from problems import pose
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.attack import Attack
from marginattack.attacks.bim import BIM
from marginattack.attacks.daa import DAA, DGF, Blob, Flow
from marginattack.attacks.fgsm import FGSM
from marginattack.attacks.logit_difference import LogitDifferenceAttack
from marginattack.attacks.pgd import PGD, random_point, steepest_step
from marginattack.attacks.search import Search
from marginattack.core import losses
from marginattack.core.norms import as_norm
from marginattack.sources.data import samples

Digits = tuple[Tensor, Tensor]
FIXED_RADIUS: list[Attack] = [
    PGD(steps=8, step=0.2), BIM(steps=8), LogitDifferenceAttack(steps=8, step=0.2, candidates=3),
    DAA(steps=8, step=0.2, particles=3), DAA(steps=8, step=0.2, particles=3, flow=DGF()),
]  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> Digits:
    return samples("mnist", 20)


class Seen(nn.Module):
    """A model that keeps every input of its forward passes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.inputs = model, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x.detach().clone())
        logits: Tensor = self.model(x)
        return logits


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("boxed", [True, False])
def test_fgsm_on_two_linear_classes_finds_the_margin(norm: str, boxed: bool) -> None:
    oracle = oracles.linear(1, classes=2, boxed=boxed, dtype=torch.float64)
    m = ma.measure(oracle.model, oracle.images, oracle.labels, norm, attack=FGSM(halvings=40), bounds=oracle.bounds)
    np.testing.assert_allclose(m.distance, oracle.exact(norm), rtol=1e-6)


def test_search_does_not_depend_on_the_scale_of_the_box(network: nn.Module, digits: Digits) -> None:
    x, y = digits[0][:2].double(), digits[1][:2]
    small = ma.measure(network.double(), x, y, "l2", attack=Search(levels=5))
    scaled = nn.Sequential(_Scaled(255.0), network)
    large = ma.measure(scaled, 255 * x, y, "l2", attack=Search(levels=5), bounds=(0.0, 255.0))
    network.float()
    torch.testing.assert_close(large.distance, 255 * small.distance, rtol=1e-3, atol=0)


class _Scaled(nn.Module):
    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        return x / self.top


@pytest.mark.parametrize("attack", FIXED_RADIUS, ids=repr)
def test_no_point_leaves_the_ball_or_the_box(network: nn.Module, digits: Digits, attack: Attack) -> None:
    seen, x, y = Seen(network), digits[0][:2], digits[1][:2]
    for norm in attack.norms:
        radius = {"l1": 4.0, "l2": 1.0, "linf": 0.3}[norm]
        for i in range(len(x)):
            seen.inputs.clear()
            full = type(attack)(**{**vars(attack), "eps": radius, "stop": False})
            ma.measure(seen, x[i : i + 1], y[i : i + 1], norm, attack=full)
            mirrored = x[i].flip(-1)  # validation puts it beside a single input
            points = torch.cat([batch for batch in seen.inputs if not batch[-1].equal(mirrored)]).double()
            assert len(points) > 3
            assert points.min() >= 0
            assert points.max() <= 1
            size = as_norm(norm).size((points - x[i].double()).flatten(1))
            assert size.max() <= radius
            assert size.max() > 0.9 * radius


@pytest.mark.parametrize("norm", [ma.L1, ma.L2, ma.LINF], ids=str)
def test_each_sample_has_its_own_radius(network: nn.Module, digits: Digits, norm: ma.Norm) -> None:
    problem = pose(network, *digits, norm=norm)
    radius = torch.linspace(0.01, 1, len(digits[0]))[:, None]
    x = random_point(problem, radius)
    for _ in range(3):
        assert (norm.size(x - problem.x0) <= radius).all()
        x = steepest_step(problem, x, torch.randn_like(x), radius, radius)


def test_restarts_differ_and_help(network: nn.Module, digits: Digits) -> None:
    problem = pose(network, *digits, norm=ma.LINF)
    starts = [random_point(problem, torch.full_like(problem.x0[:, :1], 0.1)) for _ in range(4)]
    assert all(norm > 0.05 for a, b in pairwise(starts) for norm in ma.LINF.size(a - b))
    rates = [
        ma.measure(network, *digits, "linf", attack=PGD(eps=0.1, steps=15, step=0.1, restarts=r)).success
        for r in (1, 4)
    ]
    assert (rates[0] <= rates[1]).all()


def test_stop_saves_passes_and_keeps_every_success(network: nn.Module, digits: Digits) -> None:
    stop, full = (ma.measure(network, *digits, "linf", attack=PGD(eps=0.15, step=0.1, stop=s)) for s in (True, False))
    assert torch.equal(stop.success, full.success)
    assert stop.backwards.sum() < full.backwards.sum()
    assert (full.distance <= stop.distance).all()


def test_bim_is_pgd_from_the_input(network: nn.Module, digits: Digits) -> None:
    bim, pgd = BIM(eps=0.1), PGD(eps=0.1, steps=10, step=0.2, random=False)
    a, b = (ma.measure(network, *digits, "linf", attack=attack) for attack in (bim, pgd))
    assert torch.equal(a.distance, b.distance)


def test_the_hinge_is_flat_beyond_its_confidence() -> None:
    logits, label = torch.tensor([[3.0, 1.0, 2.0], [0.0, 80.0, 5.0]]), torch.tensor([0, 0])
    assert losses.Hinge(50.0)(logits, label).tolist() == [1.0, -50.0]
    assert losses.Hinge(50.0)(100 * logits, label).tolist() == [100.0, -50.0]  # a confident model has a gradient
    assert losses.Hinge(50.0, targeted=True)(100 * logits, label).tolist() == [50.0, -8000.0]
    assert "CrossEntropy()" in repr(PGD())


def test_until_its_confidence_the_hinge_is_the_margin(network: nn.Module, digits: Digits) -> None:
    """A sample ends at its first adversarial point, long before the hinge is flat, so both give the same points."""
    pgd, digits = PGD(eps=0.15, steps=6, step=0.2), (digits[0][:6], digits[1][:6])
    hinge, margin = (
        ma.measure(network, *digits, "linf", attack=replace(pgd, loss=loss)) for loss in (losses.Hinge(), losses.MARGIN)
    )
    assert margin.success.any()
    assert torch.equal(hinge.distance, margin.distance)


@pytest.mark.parametrize("flow", [Blob(), DGF()], ids=repr)
def test_particles_repel(flow: Flow) -> None:
    """Without a gradient, steps along the flow move particles apart."""
    x = torch.rand(3, 6, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = x - 0.01 * torch.sign(flow(x, torch.zeros_like(x)))
    assert (torch.cdist(moved, moved).sum((1, 2)) > torch.cdist(x, x).sum((1, 2))).all()
    pulled = x - 0.01 * torch.sign(Blob(repulsion=-1.0)(x, torch.zeros_like(x)))
    assert (torch.cdist(pulled, pulled).sum((1, 2)) < torch.cdist(x, x).sum((1, 2))).all()


def test_a_particle_alone_is_pgd(network: nn.Module, digits: Digits) -> None:
    daa, pgd = DAA(eps=0.1, particles=1, flow=DGF()), PGD(eps=0.1)
    a, b = (ma.measure(network, *digits, "linf", attack=attack) for attack in (daa, pgd))
    assert torch.equal(a.distance, b.distance)
