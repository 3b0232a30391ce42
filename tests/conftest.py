"""Shapes and types of every function of the package are checked while the tests run."""

from jaxtyping import install_import_hook

install_import_hook("marginattack", "beartype.beartype")

from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from standins import Replayed  # noqa: E402
from torch import Tensor, nn  # noqa: E402

torch.set_num_threads(1)  # the tests run in two processes on two cores


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """The first bundled digits that the bundled network classifies rightly."""
    from marginattack.sources.data import samples

    return samples("mnist", 60)


@pytest.fixture(scope="session")
def network() -> nn.Module:
    """The bundled network."""
    from marginattack.sources.networks import zoo

    return zoo("mnist-cnn")


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """Everything is captured, on the CPU; the graphs."""
    from marginattack.execution import graphs

    made: list[Replayed] = []

    def captured(function: Callable[[], Any], device: torch.device, pool: Any) -> tuple[Any, Any]:
        made.append(Replayed(function))
        return made[-1], made[-1].answer

    monkeypatch.setattr(graphs, "_captured", captured)
    monkeypatch.setattr(graphs, "possible", lambda points: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return made
