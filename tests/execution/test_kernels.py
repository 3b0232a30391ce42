"""The GPU kernels return what the plain formulas do: on a GPU, and in Triton's interpreter where it is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import inputs, smooth
from problems import pose

from marginattack.attacks.race.moves import descend
from marginattack.core.box import Box
from marginattack.core.norms import L2, LINF, Norm
from marginattack.execution import fused

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the kernels run nowhere else")


def boxes(d: int, dtype: torch.dtype) -> list[Box]:
    """The unit box, one with a lower bound per coordinate, and all points."""
    one = torch.ones(1, 1, dtype=dtype)
    return [Box(0 * one, one), Box(-0.1 * torch.rand(1, d, dtype=dtype), one), Box(-torch.inf * one, torch.inf * one)]


def on_gpu(box: Box) -> Box:
    return Box(box.lo.cuda(), box.hi.cuda())


def check_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-5, equal_nan=True)


@on_a_gpu
@pytest.mark.parametrize("norm", [L2, LINF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [7, 784, 5000, 20_000])
def test_on_a_gpu_the_restoration_is_the_plain_one(norm: Norm, dtype: torch.dtype, d: int) -> None:
    assert fused.load() is not None
    torch.manual_seed(0)
    x, g, r = torch.rand(6, d, dtype=dtype), torch.randn(6, d, dtype=dtype), torch.randn(6, 1, dtype=dtype)
    g[1], g[2, ::2], r[3], r[4], r[5] = 0, 0, 0, 1e6, 0.4 * g[5].abs().sum()  # flat, sparse, there, too far, far
    for box in boxes(d, dtype):
        expected = norm.onto_plane(x, g, r, box)
        found = norm.onto_plane(x.cuda(), g.cuda(), r.cuda(), on_gpu(box))
        check_close(found / (1 + x.cuda().abs().amax()), expected / (1 + x.abs().amax()))


@on_a_gpu
@pytest.mark.parametrize("norm", [L2, LINF])
@pytest.mark.parametrize("d", [7, 784, 5000, 20_000])
def test_on_a_gpu_a_descent_is_the_plain_one(norm: Norm, d: int) -> None:
    torch.manual_seed(0)
    x0, box = torch.rand(6, d), boxes(d, torch.float32)[0]
    x = (x0 + 0.1 * torch.randn(6, d)).clamp(0, 1)
    x[0] = x0[0]
    g, c, v = torch.randn(6, d), torch.randn(6, 1), torch.randn(6, d)
    g[1], v[1] = 0, 0
    ball = torch.cat([torch.rand(6, 1), torch.tensor([[0.0], [1.0]] * 3), torch.full((6, 1), 0.9)], dim=1)
    ball[0, 0] = 0
    numbers = torch.rand(6, 3)
    numbers[2, 2], numbers[3, 2] = 0, 1
    for rows in (numbers, numbers[:1]):  # a row per sample, and one for all
        arguments = (x, v, ball, rows, c, g, x0)
        expected = descend(norm, *arguments, box, memory=0.25, growth=0.5)
        found = descend(norm, *(each.cuda() for each in arguments), on_gpu(box), memory=0.25, growth=0.5)
        for a, b in zip(found, expected, strict=True):
            check_close(a, b)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu_a_query_is_that_of_a_cpu(dtype: torch.dtype) -> None:
    images, labels = inputs(smooth(dtype=dtype), n=9)
    problems = [pose(smooth(dtype=dtype).to(device), images, labels) for device in ("cpu", "cuda")]
    answers = [problem.value_and_gradient(problem.x0) for problem in problems]
    for a, b in zip(*answers, strict=True):
        check_close(b, a)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which torch installs for GPUs")
def test_interpreted_kernels_return_what_the_plain_formulas_do() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = Path(__file__).parent / "interpreted.py"
    run = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True, check=False)
    assert "all kernels agree" in run.stdout, run.stderr
