"""The kernels against the plain formulas, in Triton's interpreter: run by test_kernels.py in a process of its own."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from contextlib import nullcontext

import pytest
import standins
import torch
from models import inputs, smooth
from problems import validated
from torch import Tensor

from marginattack.attacks import Race
from marginattack.attacks.race.moves import descend
from marginattack.core import losses
from marginattack.core.box import Box
from marginattack.core.classifier import Classifier
from marginattack.core.incumbent import Incumbent
from marginattack.core.norms import L2, LINF, Norm
from marginattack.execution import fused, graphs, kernels


def check_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def kernels_of(norm: Norm) -> kernels.Kernels:
    return kernels.Kernels(uniform=norm is LINF)


def unit_box() -> Box:
    return Box(torch.zeros(1, 1), torch.ones(1, 1))


def check_onto_plane(norm: Norm, d: int) -> None:
    x, g, r = torch.rand(5, d), torch.randn(5, d), torch.randn(5, 1)
    g[1], g[2, ::2], r[3], r[4] = 0, 0, 0, 1e6
    for box in (unit_box(), Box(-0.1 * torch.rand(1, d), torch.ones(1, 1))):
        check_close(kernels_of(norm).onto_plane(x, g, r, box), norm.onto_plane(x, g, r, box))


def check_descend(norm: Norm, d: int) -> None:
    x0, v, g, c, numbers = torch.rand(5, d), torch.randn(5, d), torch.randn(5, d), torch.randn(5, 1), torch.rand(5, 3)
    box = unit_box()
    x = box.clamp(x0 + 0.1 * torch.randn(5, d))
    x[0], g[1], v[1], numbers[2, 2] = x0[0], 0, 0, 0
    radius = torch.tensor([[0.0], [0.2], [0.3], [0.4], [9.0]])
    ball = torch.cat([radius, torch.zeros(5, 1), torch.ones(5, 1)], dim=1)
    for rows in (numbers, numbers[:1]):
        arguments = (x, v, ball, rows, c, g, x0, box)
        expected = descend(norm, *arguments, memory=0.25, growth=0.5)
        found = kernels_of(norm).descend(*arguments, memory=0.25, growth=0.5)
        for a, b in zip(found, expected, strict=True):
            check_close(a, b)


def check_margin(classes: int) -> None:
    logits, label = 5 * torch.randn(6, classes), torch.randint(0, classes, (6,))
    logits[3], logits[4], logits[5, 0] = logits[3].round(), 0, torch.nan
    direction = torch.tensor([1, -1, 0, 1, -1, 1])
    leaf = logits.clone().requires_grad_()
    expected = direction * losses.MARGIN(leaf, label)
    (slopes,) = torch.autograd.grad(expected.sum(), leaf)
    own, other = losses.compare(logits, label)
    tolerance = (1e-5 * losses.scale(logits, own, other)).clamp(min=1e-3)
    value, crossed, found = kernels.margin(logits, torch.stack([label, direction], 1), 1e-5, 1e-3)
    check_close(value, (expected.detach() + tolerance).nan_to_num(0.0))
    assert crossed.equal(direction * (own - other) + tolerance < 0)
    check_close(found[:5], slopes[:5])
    assert not found[5].any()


def check_record(norm: Norm, d: int) -> None:
    x0 = torch.rand(6, d)
    x = (x0 + 0.01 * torch.randn(6, d)).clamp(0, 1)
    x[1, 0], x[2, 0] = 1.5, torch.nan
    direction = torch.tensor([1, 1, 1, 0, -1, 1])
    goals = torch.stack([torch.zeros_like(direction), direction], 1)
    crossed = torch.tensor([True, True, True, False, True, True])
    expected, found = (Incumbent(x0, unit_box(), norm) for _ in range(2))
    for incumbent in (expected, found):
        incumbent.history.passes[:] = torch.tensor([0, 5, 100, 7, 1000, 10**7])
        incumbent.distance[4] = 1e-9
    expected.offer(x, crossed, goals, 2, slice(None))
    kernels_of(norm).record(x, found, crossed, goals, 2)
    check_close(found.points, expected.points)
    check_close(found.distance, expected.distance)
    for a, b in zip(found.history.tensors, expected.history.tensors, strict=True):
        check_close(a, b)


def check_race(norm: Norm, patch: pytest.MonkeyPatch) -> None:
    """A whole race, with stand-ins for graphs, with kernels and without."""
    standins.install(patch)
    patch.setattr(fused, "load", lambda: kernels)
    solved = []
    with validated(Classifier(smooth()), *inputs(smooth(), n=4)) as (session, batch):
        for available in (False, True):
            patch.setattr(graphs, "can_capture", lambda points, available=available: available)
            patch.setattr(fused, "available", lambda x, available=available: available)
            problem = session.problem(batch, norm, budget=40)
            problem.solve(Race())
            solved.append(problem.incumbent)
    assert not session.graphs.why_not
    check_close(solved[1].distance, solved[0].distance)
    assert solved[1].history.passes.equal(solved[0].history.passes)


def main() -> None:
    torch.cuda.device_of = lambda tensor: nullcontext()  # type: ignore[assignment, misc, return-value]
    torch.manual_seed(0)
    for norm in (L2, LINF):
        for d in (7, 5000, 20_000):
            check_onto_plane(norm, d)
            check_descend(norm, d)
            check_record(norm, d)
        with pytest.MonkeyPatch.context() as patch:
            check_race(norm, patch)
    for classes in (2, 10, 5000):
        check_margin(classes)
    print("all kernels agree")


if __name__ == "__main__":
    main()
