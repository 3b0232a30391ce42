"""Shapes and types of every function of the package are checked while the tests run."""

import os

import type_checks

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start; a process with threads cannot be forked
type_checks.install("marginattack")

import pytest  # noqa: E402
import standins  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

torch.set_num_threads(1)  # the tests run in two processes on two cores


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """The first bundled digits, which the bundled network classifies correctly."""
    from marginattack.sources.data import samples

    return samples("mnist", 60)


@pytest.fixture(scope="session")
def network() -> nn.Module:
    """The bundled network."""
    from marginattack.sources.networks import zoo

    return zoo("mnist-cnn")


@pytest.fixture
def graphs_made(monkeypatch: pytest.MonkeyPatch) -> list[standins.StandInGraph]:
    """Everything is captured, on the CPU; the graphs."""
    return standins.install(monkeypatch)
