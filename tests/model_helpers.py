"""Helpers of the tests of model sources."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from marginattack.errors import InputError
from marginattack.sources.models import open_model


def assert_refused(message: str, source: str | Path, **settings: Any) -> str:
    """Check that opening a source raises an error of one line with this message, and return it."""
    with pytest.raises(InputError, match=message) as caught:
        open_model(str(source), **settings)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    return line


def linear(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))


def save_weights(model: nn.Module, path: Path) -> str:
    save_file(model.state_dict(), path)
    return str(path)


def assert_same_model(source: str, model: nn.Module, *, shape: tuple[int, ...] = (3, 8, 8), **settings: Any) -> Any:
    """Open a source, and compare logits and gradients with its model for batches of 1, 3 and 7."""
    opened = open_model(source, **settings)
    assert not opened.module.training
    for n in (1, 3, 7):
        images = torch.rand(n, *shape, requires_grad=True)
        same = images.detach().clone().requires_grad_()
        got, expected = opened.module(images), model(same)
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, atol=1e-5)
        weights = torch.rand_like(expected)
        (got * weights).sum().backward()
        (expected * weights).sum().backward()
        assert images.grad is not None
        assert same.grad is not None
        assert same.grad.any()
        assert torch.allclose(images.grad, same.grad, atol=1e-5)
    return opened
