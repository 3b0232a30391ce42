"""The kernels return what the plain formulas do: on a GPU, and in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import inputs, smooth
from problems import pose

from marginattack.core.norms import L2, LINF, Norm
from marginattack.execution import fused

pytest.importorskip("triton", reason="needs Triton, which torch installs for GPUs")
import kernel_checks

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
@pytest.mark.parametrize("norm", [L2, LINF])
@pytest.mark.parametrize("d", [7, 784, 5000, 20_000])
def test_on_a_gpu_kernels_return_what_the_plain_formulas_do(norm: Norm, d: int) -> None:
    assert fused.load(torch.device("cuda")) is not None
    assert fused.provide("onto_plane", torch.ones(1, d, device="cuda"), norm) is not None
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        kernel_checks.check_onto_plane(norm, d, "cuda", dtype)
    kernel_checks.check_descend(norm, d, "cuda")
    kernel_checks.check_record(norm, d, "cuda")
    kernel_checks.check_margin(d, "cuda")


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu_a_query_is_that_of_a_cpu(dtype: torch.dtype) -> None:
    images, labels = inputs(smooth(dtype=dtype), n=9)
    problems = [pose(smooth(dtype=dtype).to(device), images, labels) for device in ("cpu", "cuda")]
    expected, found = (problem.value_and_gradient(problem.x0) for problem in problems)
    for a, b in zip(found, expected, strict=True):
        kernel_checks.check_close(a, b)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run on a GPU")
def test_interpreted_kernels_return_what_the_plain_formulas_do() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_INTERPRET": "1"}
    script = Path(__file__).parent / "kernel_checks.py"
    run = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True, check=False)
    assert "all kernels agree" in run.stdout, run.stderr
