"""Our own kernels answer as the plain formulas do: on a GPU, and in Triton's interpreter where Triton is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import inputs, smooth

from marginattack.attacks.legs import Descent
from marginattack.core import norms
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2, LINF, Norm
from marginattack.core.problem import Problem

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the kernels run nowhere else")


def walls(d: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A box, one with a wall of its own for each coordinate, and none."""
    one = torch.ones(1, 1, dtype=dtype)
    return [(0 * one, one), (-0.1 * torch.rand(1, d, dtype=dtype), one), (-torch.inf * one, torch.inf * one)]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@on_a_gpu
@pytest.mark.parametrize("norm", [L2, LINF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [7, 784, 5000, 20_000])
def test_on_a_gpu_the_restoration_is_the_plain_one(norm: Norm, dtype: torch.dtype, d: int) -> None:
    assert norms.fused(torch.ones(1, device="cuda")) is not None
    torch.manual_seed(0)
    x, g, r = torch.rand(6, d, dtype=dtype), torch.randn(6, d, dtype=dtype), torch.randn(6, 1, dtype=dtype)
    g[1], g[2, ::2], r[3], r[4], r[5] = 0, 0, 0, 1e6, 0.4 * g[5].abs().sum()  # flat, sparse, there, too far, far
    for lo, hi in walls(d, dtype):
        expected = norm.onto_plane(x, g, r, lo, hi)
        found = norm.onto_plane(*(tensor.cuda() for tensor in (x, g, r, lo, hi)))
        close(found / (1 + x.cuda().abs().amax()), expected / (1 + x.abs().amax()))


@on_a_gpu
@pytest.mark.parametrize("norm", [L2, LINF])
@pytest.mark.parametrize("d", [7, 784, 5000, 20_000])
def test_on_a_gpu_a_descent_is_the_plain_one(norm: Norm, d: int) -> None:
    torch.manual_seed(0)
    x0 = torch.rand(6, d)
    x = (x0 + 0.1 * torch.randn(6, d)).clamp(0, 1)
    x[0] = x0[0]
    g, c, v = torch.randn(6, d), torch.randn(6, 1), torch.randn(6, d)
    g[1], v[1] = 0, 0
    state = (x, v, torch.rand(6, 1), torch.tensor([[0.0], [1.0]] * 3), torch.full((6, 1), 0.9))
    state[2][0] = 0
    now = torch.rand(6, 3)
    now[2, 2], now[3, 2] = 0, 1
    problems = [
        Problem(Classifier(torch.nn.Linear(d, 2).to(device)), x0, torch.zeros(6, dtype=torch.int64), norm)
        for device in ("cpu", "cuda")
    ]
    descent = Descent(norm, memory=0.25, growth=0.5)
    expected = descent.moved(problems[0], now.split(1, dim=1), c, g, *state)
    found = descent.moved(problems[1], now.cuda().split(1, dim=1), c.cuda(), g.cuda(), *(s.cuda() for s in state))
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu_a_look_is_that_of_a_cpu(dtype: torch.dtype) -> None:
    images, labels = inputs(smooth(dtype=dtype), n=9)
    found = []
    for device in ("cpu", "cuda"):
        classifier = Classifier(smooth(dtype=dtype).to(device))
        with classifier.held():
            x, y, _ = classifier.accept(images, labels)
            problem = Problem(classifier, x, y, L2)
            found.append(problem.c(problem.x0))
    for a, b in zip(*found, strict=True):
        close(b, a)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which torch has on a GPU alone")
def test_interpreted_they_answer_as_the_plain_formulas_do() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = Path(__file__).parent / "interpreted.py"
    run = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True, check=False)
    assert "as the plain ones" in run.stdout, run.stderr
