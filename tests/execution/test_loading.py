"""The kernels are loaded once per GPU, in a thread."""

import pytest
import torch

from marginattack.execution import fused


def test_kernels_are_loaded_once_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[torch.device, int, int]] = []
    monkeypatch.setattr(fused, "_loading", {})

    def load(device: torch.device, columns: int, classes: int) -> str:
        loaded.append((device, columns, classes))
        return str(device)

    monkeypatch.setattr(fused, "_load", load)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    assert fused.start_loading(first, 784, 10).result() == "cuda:0"
    assert fused.load(first) == "cuda:0"  # does not load again, for other lengths
    assert fused.load(second) == fused.load(torch.device("cuda")) == "cuda:1"  # the current one
    assert loaded == [(first, 784, 10), (second, 2, 2)]


def test_where_kernels_cannot_be_compiled_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(fused, "_loading", {})
    monkeypatch.setattr(torch.cuda, "device", fail)
    assert fused.load(torch.device("cuda:0")) is None
