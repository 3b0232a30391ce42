"""Checks of the kernels against the plain formulas on the CPU, for a GPU or, as a script, for Triton's interpreter."""

from contextlib import nullcontext
from typing import Any

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
    rtol, atol = (1e-4, 1e-5) if found.is_cuda else (1e-5, 1e-6)
    torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)


def kernels_of(norm: Norm) -> kernels.Kernels:
    return kernels.Kernels(uniform=norm is LINF)


def boxes(d: int, device: str, dtype: torch.dtype = torch.float32) -> list[tuple[Box, Box]]:
    """The unit box, one with a lower bound per coordinate, and all points: each on the CPU and on the device."""
    one = torch.ones(1, 1, dtype=dtype)
    bounds = [(0 * one, one), (-0.1 * torch.rand(1, d, dtype=dtype), one), (-torch.inf * one, torch.inf * one)]
    return [(Box(lo, hi), Box(lo.to(device), hi.to(device))) for lo, hi in bounds]


def check_onto_plane(norm: Norm, d: int, device: str, dtype: torch.dtype = torch.float32) -> None:
    x, g, r = torch.rand(6, d, dtype=dtype), torch.randn(6, d, dtype=dtype), torch.randn(6, 1, dtype=dtype)
    g[1], g[2, ::2], r[3], r[4], r[5] = 0, 0, 0, 1e6, 0.4 * g[5].abs().sum()  # flat, sparse, there, too far, far
    for box, there in boxes(d, device, dtype):
        found = kernels_of(norm).onto_plane(x.to(device), g.to(device), r.to(device), there)
        check_close(found, norm.onto_plane(x, g, r, box))


def check_descend(norm: Norm, d: int, device: str) -> None:
    x0, v, g, c, numbers = torch.rand(6, d), torch.randn(6, d), torch.randn(6, d), torch.randn(6, 1), torch.rand(6, 3)
    x = (x0 + 0.1 * torch.randn(6, d)).clamp(0, 1)
    x[0], g[1], v[1], numbers[2, 2], numbers[3, 2] = x0[0], 0, 0, 0, 1
    radius, found = torch.tensor([[0.0], [0.2], [0.3], [0.4], [0.5], [9.0]]), torch.tensor([[0.0], [1.0]] * 3)
    ball = torch.cat([radius, found, torch.full((6, 1), 0.9)], dim=1)
    for rows in (numbers, numbers[:1]):  # a row per sample, and one for all
        for box, there in boxes(d, device):
            tensors = (x, v, ball, rows, c, g, x0)
            expected = descend(norm, *tensors, box, memory=0.25, growth=0.5)
            arguments: list[Any] = [*(each.to(device) for each in tensors), there]
            after = kernels_of(norm).descend(*arguments, memory=0.25, growth=0.5)
            for a, b in zip(after, expected, strict=True):
                check_close(a, b)


def check_margin(classes: int, device: str) -> None:
    logits, label = 5 * torch.randn(6, classes), torch.randint(0, classes, (6,))
    logits[3], logits[4], logits[5, 0] = logits[3].round(), 0, torch.nan
    direction = torch.tensor([1, -1, 0, 1, -1, 1])
    leaf = logits.clone().requires_grad_()
    expected = direction * losses.MARGIN(leaf, label)
    (slopes,) = torch.autograd.grad(expected.sum(), leaf)
    own, other = losses.compare(logits, label)
    tolerance = (1e-5 * losses.scale(logits, own, other)).clamp(min=1e-3)
    goals = torch.stack([label, direction], 1)
    value, crossed, found = kernels.margin(logits.to(device), goals.to(device), 1e-5, 1e-3)
    check_close(value, (expected.detach() + tolerance).nan_to_num(0.0))
    assert crossed.cpu().equal(direction * (own - other) + tolerance < 0)
    check_close(found[:5], slopes[:5])
    assert not found[5].any()


def check_record(norm: Norm, d: int, device: str) -> None:
    x0 = torch.rand(6, d)
    x = (x0 + 0.01 * torch.randn(6, d)).clamp(0, 1)
    x[1, 0], x[2, 0] = 1.5, torch.nan
    direction = torch.tensor([1, 1, 1, 0, -1, 1])
    goals = torch.stack([torch.zeros_like(direction), direction], 1)
    crossed = torch.tensor([True, True, True, False, True, True])
    box, there = boxes(d, device)[0]
    expected, found = Incumbent(x0, box, norm), Incumbent(x0.to(device), there, norm)
    for incumbent in (expected, found):
        incumbent.history.passes[:] = torch.tensor([0, 5, 100, 7, 1000, 10**7])
        incumbent.distance[4] = 1e-9
    expected.offer(x, crossed, goals, 2, slice(None))
    kernels_of(norm).record(x.to(device), found, crossed.to(device), goals.to(device), 2)
    pairs = zip((found.points, found.distance, *found.history.tensors),
                (expected.points, expected.distance, *expected.history.tensors), strict=True)  # fmt: skip
    for a, b in pairs:
        check_close(a, b)


def check_race(norm: Norm, patch: pytest.MonkeyPatch) -> None:
    """A complete race on the CPU, with stand-ins for graphs, with kernels and without."""
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
            for check in (check_onto_plane, check_descend, check_record):
                check(norm, d, "cpu")
        with pytest.MonkeyPatch.context() as patch:
            check_race(norm, patch)
    for classes in (2, 10, 5000):
        check_margin(classes, "cpu")
    print("all kernels agree")


if __name__ == "__main__":
    main()
